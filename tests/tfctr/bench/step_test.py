import json

import pytest

from tfctr.bench import step
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.workload import Workload

SMALL = Workload(num_fields=3, rows_per_field=50, dim=4, batch_size=16)


def test_ours_stand_beside_equal_optimizers_and_beside_the_fastest_of_fbgemm():
    systems = [
        ("tfctr", "adagrad"),
        ("tfctr", "adam"),
        ("fbgemm", "adagrad"),
        ("fbgemm", "rowwise_adagrad"),
        ("tfra", "adam"),
        ("tfctr_tfra", "adam"),
        ("tfctr_clip", "adam"),
        ("tfra_bare", "adam"),
    ]
    assert set(step.compared_pairs({system: [1.0] for system in systems})) == {
        "tfctr_adagrad/fbgemm_adagrad",
        "tfctr_adagrad/fbgemm_rowwise_adagrad",
        "tfctr_adam/fbgemm_rowwise_adagrad",
        "tfctr_adam/tfra_adam",
        "tfctr_adam/tfctr_tfra_adam",
        "tfctr_tfra_adam/tfra_adam",
        "tfctr_tfra_adam/tfra_bare_adam",
        "tfra_bare_adam/tfra_adam",
        "tfctr_clip_adam/tfctr_adam",
    }


def test_samples_are_found_by_system_and_optimizer():
    measured = Measurement(samples={("keras", "sparse/W/adam"): [1.0, 2.0]})
    assert step.by_system_and_optimizer(measured) == {("keras", "adam"): [1.0, 2.0]}


def test_unknown_system_is_refused():
    with pytest.raises(ValueError, match=r"Received: \['kers'\]"):
        step.run(names=("tfctr", "kers"))


@pytest.mark.slow
def test_small_run_gives_the_promised_json():
    own_systems = {"tfctr", "tfctr_clip", "tfctr_tfra", "tfctr_hybrid"}
    names = (
        *sorted(own_systems),
        "tf_variable",
        "keras",
        "tfra",
        "tfra_bare",
        "fbgemm",
    )
    result = step.run(SMALL, names, Turns(rounds=2, steps=2), wait_seconds=0.0)
    result = json.loads(json.dumps(result))
    rows = {(row["system"], row["optimizer"]): row for row in result["rows"]}
    absent = {entry["system"] for entry in result["absent"]}
    assert set(rows) == {
        (system, optimizer)
        for system in set(names) - absent
        for optimizer in step.OPTIMIZERS[system]
    }
    may_be_absent = {"tfra", "tfra_bare", "tfctr_tfra", "tfctr_hybrid", "fbgemm"}
    assert absent <= may_be_absent, result["absent"]
    assert all(row["ms"] > 0 and row["steps"] == 4 for row in rows.values())
    ratios = result["ratios"]
    ours, keras = rows["tfctr", "adam"]["ms"], rows["keras", "adam"]["ms"]
    assert ratios["tfctr_adam/keras_adam"] == pytest.approx(ours / keras)
    assert set(result["intervals"]) == set(ratios)
    # The tables held every id before the first timed step.
    for system in own_systems - absent:
        assert result["facts"][system]["rows"] == {
            f"W/{optimizer}": 150 for optimizer in step.OPTIMIZERS[system]
        }
    shares = result["facts"]["tfctr_clip"]["clipped_share"]
    assert set(shares) == {"W/adagrad", "W/adam"}
    assert all(0 < share < 1 for share in shares.values())
    assert result["versions"]["tensorflow"]
    assert result["machine"]["cores"] >= 1
    text = step.table(result)
    assert "tf_variable" in text and "tfctr_adam/keras_adam" in text
