"""`bench fit`: examples a second of a whole DeepFM.

Every system trains the same sizes on the same batches: 26 categorical fields of W, 13
dense features, hidden layers of 256 and 128 units. Those with a `fit` are timed by it.
"""

from typing import Any

from tfctr.bench import report, systems
from tfctr.bench.rounds import Turns
from tfctr.bench.session import Request, Session, common_facts
from tfctr.bench.step import by_system_and_optimizer
from tfctr.bench.summary import median, ratio, ratio_interval
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import W, Workload

OPTIMIZERS = {
    "tfctr": ("adagrad", "adam"),
    "torch_fbgemm": ("rowwise_adagrad",),
    "tfra": ("adagrad", "adam"),
    "deepctr": ("adagrad", "adam"),
}
# Batches of one `fit`. Enough that the cost of starting it is a few percent.
BATCHES = 20
SECONDS = 170.0
TURNS = Turns(rounds=5, steps=1, untimed=0)


def run(
    workload: Workload = W,
    names: tuple[str, ...] = tuple(OPTIMIZERS),
    turns: Turns = TURNS,
    batches: int = BATCHES,
    seconds: float = SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Measures how fast each system trains the same DeepFM.

    Args:
        workload: The ids and sizes.
        names: Names of the systems, from `OPTIMIZERS`.
        turns: How often each is measured; a step is one `fit` over `batches`.
        batches: Integer. Batches of a timed step.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `rows` with the median examples a second of each system and
        sparse optimizer, `ratios` of ours to each peer's, their bootstrap
        `intervals`, `machine`, `versions` and `absent`.
    """
    requests = _requests(workload, names, batches)
    session = Session(seconds, wait_seconds)
    times = by_system_and_optimizer(session.measure(requests, turns))
    examples = batches * workload.batch_size
    speeds = {key: [examples / (ms / 1e3) for ms in times[key]] for key in times}
    pairs = {
        f"{'_'.join(ours)}/{'_'.join(peer)}": (speeds[ours], speeds[peer])
        for ours in speeds
        for peer in speeds
        if ours[0] == "tfctr" != peer[0]
    }
    return {
        **common_facts("fit", requests[0][1], turns),
        "rows": [
            {
                "system": system,
                "optimizer": optimizer,
                "examples_per_second": median(speed),
                "fits": len(speed),
            }
            for (system, optimizer), speed in speeds.items()
        ],
        "ratios": {name: ratio(*pair) for name, pair in pairs.items()},
        "intervals": {name: ratio_interval(*pair) for name, pair in pairs.items()},
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = sorted(result["rows"], key=lambda row: -float(row["examples_per_second"]))
    lines = report.columns(
        ["system", "sparse optimizer", "examples/s", "fits"],
        [
            [
                row["system"],
                row["optimizer"],
                f"{row['examples_per_second']:,.0f}",
                str(row["fits"]),
            ]
            for row in rows
        ],
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    return report.page(result, lines, ratios if result["ratios"] else [])


def _requests(
    workload: Workload, names: tuple[str, ...], batches: int
) -> list[Request]:
    makers = {
        "tfctr": lambda: systems.tfctr("fit_tfctr"),
        "torch_fbgemm": systems.torch_model,
        "tfra": lambda: systems.tfra("fit_tfra"),
        "deepctr": systems.deepctr,
    }
    unknown = sorted(set(names) - set(makers))
    if unknown:
        raise ValueError(
            f"`names` must be among {sorted(makers)}. Received: {unknown}."
        )
    return [
        (
            makers[name](),
            Options({"W": workload}, OPTIMIZERS[name], batches_per_step=batches),
        )
        for name in names
    ]
