"""`bench clip`: what `CowClip` costs around a Keras optimizer.

One training step, `train_on_batch`, of a model of stock Keras embeddings and one dense
output, compiled with `CowClip(Adam)` and with the same Adam alone. Both stand in one
process and take turns. `step` has the cost of clipping in the tables of tfctr.
"""

from typing import Any

from tfctr.bench import report, systems
from tfctr.bench.rounds import Turns
from tfctr.bench.session import Session, common_facts
from tfctr.bench.summary import median, ratio, ratio_interval
from tfctr.bench.workers.options import WHOLE, Options
from tfctr.bench.workload import W, Workload

# One for each field. So small that a step is mostly the start of its ops.
FIELD_TABLES = Workload(rows_per_field=1_000)
# Adam of Keras moves all rows of the large table in each step.
SECONDS = 110.0
TURNS = Turns(rounds=10, steps=4)


def run(
    large: Workload = W,
    small: Workload = FIELD_TABLES,
    turns: Turns = TURNS,
    seconds: float = SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Measures the step with `CowClip` beside the step without.

    Args:
        large: The workload of one table that holds all fields.
        small: The workload of a table for each field.
        turns: How often and how long each case is measured.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `rows` with the median milliseconds of each case; `ratios` of
        the step with `CowClip` to the step without, by the kind of tables, with their
        bootstrap `intervals`; `facts`, with the share of rows that were clipped;
        `machine`, `versions` and `absent`.
    """
    options = Options(
        {"one_table": large, "field_tables": small}, ("adam", "cow_clip"), (WHOLE,)
    )
    session = Session(seconds, wait_seconds)
    measured = session.measure([(systems.tfctr("keras_clip"), options)], turns)
    samples = {
        tuple(name.split("/")[1:]): times
        for (_, name), times in measured.samples.items()
    }
    pairs = {
        tables: (samples[tables, "cow_clip"], samples[tables, "adam"])
        for tables in options.workloads
    }
    return {
        **common_facts("clip", options, turns),
        "rows": [
            {
                "tables": tables,
                "optimizer": optimizer,
                "ms": median(times),
                "steps": len(times),
            }
            for (tables, optimizer), times in samples.items()
        ],
        "ratios": {tables: ratio(*pair) for tables, pair in pairs.items()},
        "intervals": {tables: ratio_interval(*pair) for tables, pair in pairs.items()},
        "facts": measured.facts,
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = report.columns(
        ["tables", "optimizer", "median ms", "steps"],
        [
            [row["tables"], row["optimizer"], f"{row['ms']:.2f}", str(row["steps"])]
            for row in result["rows"]
        ],
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    clipped = [
        f"Rows clipped, {tables}: {share:.0%}"
        for tables, share in result["facts"]["tfctr"]["clipped_share"].items()
    ]
    return report.page(result, rows, ["cow_clip over adam:", *ratios], clipped)
