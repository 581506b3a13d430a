"""`bench step`: one sparse training step: lookup, backward, update of the rows."""

from typing import Any

from tfctr.bench import report, systems
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.session import SECONDS, Request, Session, common_facts
from tfctr.bench.summary import median, ratio, ratio_interval
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import W, Workload

# In the order in which they are set up: TFRA takes longest.
OPTIMIZERS = {
    "tfctr": ("adagrad", "rowwise_adagrad", "adam"),
    "tfctr_clip": ("adagrad", "adam"),
    "tfctr_tfra": ("adagrad", "adam"),
    "tfctr_hybrid": ("adagrad", "adam"),
    "tfra_bare": ("adagrad", "adam"),
    "tfra": ("adagrad", "adam"),
    "fbgemm": ("adagrad", "rowwise_adagrad"),
    "tf_variable": ("adagrad", "adam"),
    "keras": ("adagrad", "adam"),
}

# Nine systems, of which some fill their tables for half a minute.
STEP_SECONDS = 3 * SECONDS
# Steps of a few milliseconds scatter more, so the fast systems take more of them.
TURNS = Turns(
    rounds=5,
    steps=12,
    fewer_steps={
        "keras": 2,
        "tfra": 4,
        "tfra_bare": 6,
        "tfctr_tfra": 6,
        "tfctr_hybrid": 6,
    },
)


def run(
    workload: Workload = W,
    names: tuple[str, ...] = tuple(OPTIMIZERS),
    turns: Turns = TURNS,
    seconds: float = STEP_SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Measures the sparse step of every system that is here.

    Args:
        workload: The ids and sizes.
        names: Names of the systems, from `OPTIMIZERS`.
        turns: How often and how long each is measured.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `rows` with the median milliseconds of each system and
        optimizer, `ratios` of tfctr's medians to the others', their bootstrap
        `intervals`, what the workers tell (`facts`: rows of our tables), `machine`,
        `versions`, and the systems that are `absent`.
    """
    requests = _requests(workload, names)
    session = Session(seconds, wait_seconds)
    measured = session.measure(requests, turns)
    samples = by_system_and_optimizer(measured)
    pairs = compared_pairs(samples)
    return {
        **common_facts("step", requests[0][1], turns),
        "rows": [
            {"system": s, "optimizer": o, "ms": median(times), "steps": len(times)}
            for (s, o), times in samples.items()
        ],
        "ratios": {n: ratio(samples[a], samples[b]) for n, (a, b) in pairs.items()},
        "intervals": {
            n: ratio_interval(samples[a], samples[b]) for n, (a, b) in pairs.items()
        },
        "facts": measured.facts,
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = sorted(result["rows"], key=lambda row: float(row["ms"]))
    lines = report.columns(
        ["system", "optimizer", "median ms", "steps"],
        [
            [row["system"], row["optimizer"], f"{row['ms']:.2f}", str(row["steps"])]
            for row in rows
        ],
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    return report.page(result, lines, ratios if result["ratios"] else [])


def by_system_and_optimizer(
    measured: Measurement,
) -> dict[tuple[str, str], list[float]]:
    """The samples under (system, optimizer), where there is one kind and workload."""
    return {
        (system, case.rsplit("/", 1)[1]): times
        for (system, case), times in measured.samples.items()
    }


def compared_pairs(
    samples: dict[tuple[str, str], list[float]],
) -> dict[str, tuple[tuple[str, str], tuple[str, str]]]:
    """Each pair of ours and a peer's that is worth a ratio, under its name.

    The optimizers are equal, or the peer is FBGEMM: its row-wise Adagrad is the
    fastest step there is, so all of ours stand beside it. `TfraStorage` and
    `HybridStorage` stand beside TFRA's own layer and optimizer, whose table they have
    below them, and the step with clipping beside the step without.
    """
    beside = {
        "tfctr": {
            "fbgemm",
            "tf_variable",
            "keras",
            "tfra",
            "tfctr_tfra",
            "tfctr_hybrid",
        },
        "tfctr_tfra": {"tfra", "tfra_bare"},
        # What is left if all of our own work took no time.
        "tfra_bare": {"tfra"},
        "tfctr_hybrid": {"tfra"},
        "tfctr_clip": {"tfctr"},
    }
    return {
        f"{'_'.join(ours)}/{'_'.join(peer)}": (ours, peer)
        for ours in samples
        for peer in samples
        if peer[0] in beside.get(ours[0], ())
        and (ours[1] == peer[1] or peer == ("fbgemm", "rowwise_adagrad"))
    }


def _requests(workload: Workload, names: tuple[str, ...]) -> list[Request]:
    makers = {
        "tfctr": lambda: systems.tfctr("tfctr_layer"),
        "tfctr_clip": lambda: systems.tfctr("tfctr_clip", "tfctr_clip"),
        "tfctr_tfra": lambda: systems.tfctr_over_tfra("tfctr_tfra"),
        "tfctr_hybrid": lambda: systems.tfctr_over_tfra("tfctr_hybrid"),
        "fbgemm": systems.fbgemm,
        "tf_variable": systems.tf_variable,
        "keras": systems.keras_embedding,
        "tfra_bare": systems.tfra_bare,
        "tfra": lambda: systems.tfra("tfra"),
    }
    unknown = sorted(set(names) - set(makers))
    if unknown:
        raise ValueError(
            f"`names` must be among {sorted(makers)}. Received: {unknown}."
        )
    return [
        (makers[name](), Options({"W": workload}, OPTIMIZERS[name])) for name in names
    ]
