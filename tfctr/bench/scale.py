"""`bench scale`: does a step cost more when the tables hold more rows?

W4 has four times the rows of W, and, with its longer tail, a tenth more different ids
in a batch. Ours, FBGEMM and `tf.Variable` are measured on the sparse step alone, in
which any growth shows most. Stock Keras is measured as users meet it, `train_on_batch`
of a model of embeddings and one dense output; so is, for the comparison, ours.
"""

from typing import Any

from tfctr.bench import report, systems
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.session import SECONDS, Session, common_facts
from tfctr.bench.summary import median, ratio, ratio_interval
from tfctr.bench.workers.options import SPARSE, WHOLE, Options
from tfctr.bench.workload import W4, W, Workload

# Seconds that the second half of the systems needs. All at once would not fit the
# memory of a small machine: each holds tables of both sizes.
_SECOND_HALF_SECONDS = 14.0

TURNS = Turns(rounds=4, steps=16, fewer_steps={"keras": 2})

Samples = dict[tuple[str, str, str, str], list[float]]


def run(
    small: Workload = W,
    large: Workload = W4,
    turns: Turns = TURNS,
    seconds: float = SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Measures the step of every system at two table sizes.

    Args:
        small: The workload of the denominator.
        large: The workload of the numerator.
        turns: How often and how long each case is measured.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `rows` with the median milliseconds of each case; `ratios` of
        large to small, named `<system>_<optimizer>`, with their bootstrap `intervals`;
        `speedups` of our whole step at the large size over Keras's; `machine`,
        `versions` and `absent`.
    """
    workloads = {"W": small, "W4": large}
    both = ("adagrad", "adam")
    ours = Options(workloads, both, kinds=(SPARSE, WHOLE))
    session = Session(seconds, wait_seconds)
    first = session.measure(
        [
            (systems.tfctr("tfctr_layer"), ours),
            (systems.keras_embedding(), Options(workloads, both, kinds=(WHOLE,))),
        ],
        turns,
        reserve=_SECOND_HALF_SECONDS,
    )
    second = session.measure(
        [
            (systems.fbgemm(), Options(workloads, ("rowwise_adagrad",))),
            (systems.tf_variable(), Options(workloads, both)),
        ],
        turns,
    )
    samples = samples_by_case(first, second)
    pairs = growth_pairs(samples)
    speedups = {
        f"keras_{optimizer}/tfctr_{optimizer}": ratio(
            samples["keras", WHOLE, "W4", optimizer],
            samples["tfctr", WHOLE, "W4", optimizer],
        )
        for optimizer in both
        if ("keras", WHOLE, "W4", optimizer) in samples
    }
    return {
        **common_facts("scale", ours, turns),
        "rows": [
            {
                "system": system,
                "kind": kind,
                "workload": label,
                "optimizer": optimizer,
                "ms": median(times),
                "steps": len(times),
            }
            for (system, kind, label, optimizer), times in samples.items()
        ],
        "ratios": {n: ratio(large, small) for n, (large, small) in pairs.items()},
        "intervals": {n: ratio_interval(*pair) for n, pair in pairs.items()},
        "speedups": speedups,
        "facts": {**first.facts, **second.facts},
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = report.columns(
        ["system", "step", "optimizer", "tables", "median ms", "steps"],
        [
            [
                row["system"],
                row["kind"],
                row["optimizer"],
                row["workload"],
                f"{row['ms']:.2f}",
                str(row["steps"]),
            ]
            for row in result["rows"]
        ],
    )
    growth = report.ratio_lines(result["ratios"], result["intervals"])
    speedups = [
        f"Whole step at W4, {name}: {value:.1f} times as fast"
        for name, value in result["speedups"].items()
    ]
    return report.page(result, rows, ["Time at W4 over time at W:", *growth], speedups)


def samples_by_case(*measured: Measurement) -> Samples:
    """All samples under (system, kind, label, optimizer)."""
    samples: Samples = {}
    for measurement in measured:
        for (system, case), times in measurement.samples.items():
            kind, label, optimizer = case.split("/")
            samples[system, kind, label, optimizer] = times
    return samples


def growth_pairs(samples: Samples) -> dict[str, tuple[list[float], list[float]]]:
    """The samples at W4 and at W of each system and optimizer that has both.

    A system measured on both kinds of step is judged by the sparse one.
    """
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for kind in (SPARSE, WHOLE):
        for system, other, label, optimizer in samples:
            small = samples.get((system, kind, "W", optimizer))
            if (other, label) == (kind, "W4") and small is not None:
                large = samples[system, kind, label, optimizer]
                pairs.setdefault(f"{system}_{optimizer}", (large, small))
    return pairs
