import json

import pytest

from tfctr.bench import fit
from tfctr.bench.rounds import Turns
from tfctr.bench.workload import Workload

SMALL = Workload(num_fields=3, rows_per_field=50, dim=4, batch_size=16)


def test_unknown_system_is_refused():
    with pytest.raises(ValueError, match=r"Received: \['torch'\]"):
        fit.run(names=("tfctr", "torch"))


@pytest.mark.soak
def test_small_run_gives_the_promised_json():
    turns = Turns(rounds=2, steps=1, untimed=0)
    names = ("tfctr", "torch_fbgemm")
    result = fit.run(SMALL, names, turns, batches=2, wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    speeds = {
        (row["system"], row["optimizer"]): row["examples_per_second"]
        for row in result["rows"]
    }
    assert {system for system, _ in speeds} | {
        entry["system"] for entry in result["absent"]
    } == set(names)
    assert speeds["tfctr", "adam"] > 0
    assert "examples/s" in fit.table(result)
