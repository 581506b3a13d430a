"""`TieredTableCreator` under models that people have: the same as on TFRA's tables."""

import importlib.util

import pytest
import tensorflow as tf

from helpers import tfra_models

if importlib.util.find_spec("tensorflow_recommenders_addons") is None:
    pytest.skip("this environment has no TFRA", allow_module_level=True)

from keras_layers.storage.tfra import TieredTableCreator
from keras_layers.storage.tfra.import_guard import import_tfra

SLOTS = {
    "legacy_adam": ("m", "v"),
    "legacy_adagrad": ("accumulator",),
    "adam": ("m", "v"),
}


@pytest.mark.parametrize(
    ("optimizer", "saver", "names"),
    [
        ("legacy_adam", False, ["user"]),
        pytest.param("legacy_adam", True, ["user", "item"], marks=pytest.mark.soak),
        pytest.param("legacy_adagrad", False, ["user"], marks=pytest.mark.soak),
        pytest.param("adam", False, ["user"], marks=pytest.mark.soak),
        pytest.param("adam", True, ["user", "item"], marks=pytest.mark.soak),
    ],
)
def test_a_model_does_the_same_on_our_tables(optimizer, saver, names, tmp_path):
    result = tfra_models.run(
        "compare",
        tmp_path,
        directory=str(tmp_path),
        optimizer=optimizer,
        saver=saver,
        names=names,
    )
    theirs, ours = result["tfra"], result["tiered"]
    assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-6)

    assert ours["trained"].keys() == theirs["trained"].keys()
    for name, rows in theirs["trained"].items():
        ids, values = zip(*rows, strict=True)
        our_ids, our_values = zip(*ours["trained"][name], strict=True)
        assert our_ids == ids
        for row, our_row in zip(values, our_values, strict=True):
            assert our_row == pytest.approx(row, abs=1e-6)

    # Of the parameters, of their slots and of how often an id was seen.
    of_user = {name for name in ours["restricted"] if name.startswith("user")}
    ends = {name.rpartition("/")[2] for name in of_user}
    assert ends == {"user-parameter", "frequency", *SLOTS[optimizer]}
    kept = {tuple(i for i, _ in ours["restricted"][name]) for name in of_user}
    assert {len(ids) for ids in kept} == {20}
    assert len(kept) == 1

    for source in (theirs, ours):
        assert source["restored"] == source["restricted"]
        assert source["resumed"] == pytest.approx(source["continued"], abs=1e-6)

    if saver:
        assert "A SavedModel holds the rows of a tiered table" in result["refusal"]
        return
    assert result["served"] == pytest.approx(result["predicted"], abs=1e-6)
    if optimizer == "adam":
        saved = {"directory": str(tmp_path / "saved")}
        alone = tfra_models.run("load_and_predict", tmp_path, **saved)
        assert alone == pytest.approx(result["predicted"], abs=1e-6)


@pytest.mark.soak
def test_the_rows_of_the_oldest_timestamps_leave(tmp_path):
    result = tfra_models.run("restrict_by_age", tmp_path, directory=str(tmp_path))
    trained, restricted = result["trained"], result["restricted"]
    ids = [id_ for id_, _ in trained["user-parameter"]]
    kept = sorted(sorted(ids, key=tfra_models.newness)[-20:])
    assert len(ids) > 40
    ends = [name.rpartition("/")[2] for name in restricted]
    assert ends == ["user-parameter", "m", "v", "timestamp"]
    for name, rows in restricted.items():
        assert [id_ for id_, _ in rows] == kept
        if not name.endswith("timestamp"):
            assert rows == [row for row in trained[name] if row[0] in kept]
            continue
        assert [id_ for id_, _ in trained[name]] == ids
        seconds = {stamp for _, [stamp] in trained[name]}
        assert result["began"] <= min(seconds) <= max(seconds) <= result["ended"]


def test_it_is_what_tfra_takes_for_a_creator():
    de = import_tfra()
    creator = TieredTableCreator(ram="1MB", saver=de.FileSystemSaver())
    assert isinstance(creator, de.KVCreator)
    config = creator.get_config()
    assert config["ram"] == "1MB"
    copy = TieredTableCreator(**config)
    assert copy.get_config() == config
    assert copy.saver is creator.saver


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ram": 0}, "Received: ram=0."),
        ({"ssd": "/nvme"}, "Received: ram=None."),
        ({"ram": "1GB", "ssd_limit": "1GB"}, "Received: ssd=None"),
        ({"ram": "1GB", "ssd": "/nvme", "eviction_policy": "none"}, "say 'clock'"),
        ({"ram": "1GB", "eviction_policy": "lru"}, "slots at different times. Rec"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TieredTableCreator(**arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"key_dtype": tf.string}, TypeError, "Received: key_dtype=string, value_dty"),
        ({"value_dtype": tf.float16}, TypeError, "value_dtype=float16, for the table"),
        ({"device": "/GPU:0"}, ValueError, r"device='/GPU:0', .*\['/CPU:0'\]"),
    ],
)
def test_tables_that_it_cannot_make_are_refused(changes, error, message):
    arguments = {
        "key_dtype": tf.int64,
        "value_dtype": tf.float32,
        "default_value": tf.zeros([2]),
        "name": "ads",
    }
    with pytest.raises(error, match=message):
        TieredTableCreator().create(**{**arguments, **changes})


def test_a_graph_of_tensorflow_1_is_refused():
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="eager execution"):
        TieredTableCreator().create(
            key_dtype=tf.int64, value_dtype=tf.float32, default_value=[0.0], name="ads"
        )
