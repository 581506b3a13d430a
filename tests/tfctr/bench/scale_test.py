import json

import pytest

from tfctr.bench import scale
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.workload import Workload

SMALL = Workload(num_fields=3, rows_per_field=50, dim=4, batch_size=16)
LARGE = Workload(num_fields=3, rows_per_field=200, dim=4, batch_size=16)


def test_growth_is_judged_on_the_sparse_step_where_there_is_one():
    measured = Measurement(
        samples={
            ("tfctr", "sparse/W/adam"): [1.0],
            ("tfctr", "sparse/W4/adam"): [2.0],
            ("tfctr", "whole/W/adam"): [30.0],
            ("tfctr", "whole/W4/adam"): [40.0],
            ("keras", "whole/W/adam"): [50.0],
            ("keras", "whole/W4/adam"): [60.0],
        }
    )
    assert scale.growth_pairs(scale.samples_by_case(measured)) == {
        "tfctr_adam": ([2.0], [1.0]),
        "keras_adam": ([60.0], [50.0]),
    }


def test_system_that_did_not_get_to_the_large_tables_has_no_ratio():
    measured = Measurement(samples={("fbgemm", "sparse/W/adagrad"): [1.0]})
    assert scale.growth_pairs(scale.samples_by_case(measured)) == {}


@pytest.mark.soak
def test_small_run_gives_the_promised_json():
    result = scale.run(SMALL, LARGE, Turns(rounds=2, steps=2), wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    ours = {name for name in result["ratios"] if name.startswith("tfctr")}
    assert ours == {"tfctr_adagrad", "tfctr_adam"}
    assert {"keras_adagrad", "keras_adam", "tf_variable_adam"} <= set(result["ratios"])
    assert set(result["speedups"]) == {
        "keras_adagrad/tfctr_adagrad",
        "keras_adam/tfctr_adam",
    }
    ms = {
        (row["system"], row["kind"], row["workload"], row["optimizer"]): row["ms"]
        for row in result["rows"]
    }
    growth = ms["tfctr", "sparse", "W4", "adam"] / ms["tfctr", "sparse", "W", "adam"]
    assert result["ratios"]["tfctr_adam"] == pytest.approx(growth)
    assert result["facts"]["tfctr"]["rows"]["W4/adam"] == 600
    assert "tfctr_adagrad" in scale.table(result)
