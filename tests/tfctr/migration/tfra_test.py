"""Tables that TFRA has trained and saved, in a layer of tfctr."""

import importlib.util
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers import tfra_models
from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr import cli
from tfctr.commands import import_tfra as command_module
from tfctr.migration import import_tfra
from tfctr.migration.tfra import SLOTS
from tfctr_ops import read_info

DIM = tfra_models.DIM
TABLES = {"user-parameter": "users/user", "item-parameter": "items/item"}
OPTIMIZERS = {
    "legacy_adam": ("adam", keras.optimizers.Adam),
    "legacy_adagrad": ("adagrad", keras.optimizers.Adagrad),
    "legacy_ftrl": ("ftrl", keras.optimizers.Ftrl),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Where models are saved, and what they have learned, by their optimizers."""
    if importlib.util.find_spec("tensorflow_recommenders_addons") is None:
        pytest.skip("this environment has no TFRA")
    path = tmp_path_factory.mktemp("saved")
    arguments = {"directory": str(path), "optimizers": list(OPTIMIZERS)}
    return path, tfra_models.run("save_for_import", path, **arguments)


def make_layer(optimizer):
    features = {
        name: FeatureConfig(
            TableConfig(
                f"{name}s", DIM, optimizer, keras.initializers.Constant(0.1), seed=1
            )
        )
        for name in ("user", "item")
    }
    layer = DynamicEmbedding(features)
    layer.build({"user": (None,), "item": (None,)})
    return layer


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("legacy_adam", "checkpoint"),
        ("legacy_adam", "latest"),
        ("legacy_adam", "files"),
        ("legacy_adagrad", "files"),
        ("legacy_ftrl", "checkpoint"),
    ],
)
def test_a_layer_goes_on_where_tfra_stopped(saved, kind, form, tmp_path, capsys):
    path, expected = saved[0], saved[1][kind]
    name, optimizer = OPTIMIZERS[kind]
    source = {
        "checkpoint": expected["path"],
        "latest": path / kind,
        "files": path / f"{kind}_files",
    }[form]
    command = ["import-tfra", str(source), str(tmp_path / "snapshot")]
    for table, feature in TABLES.items():
        command += ["--table", f"{table}={feature}"]
    command += ["--dim", str(DIM), "--optimizer", name]
    if form == "files":
        command += ["--step", str(expected["steps"])]
    assert cli.main(command) == 0
    rows = len(expected["tables"]["user-parameter"])
    line = f"user-parameter -> users/user: {rows} rows, 0 of them without optimizer"
    assert line in capsys.readouterr().out

    layer = make_layer(optimizer(0.05))
    layer.restore_snapshot(tmp_path / "snapshot")
    for table, feature in TABLES.items():
        ids, vectors = zip(*expected["tables"][table], strict=True)
        read = layer.read_rows(ids, feature)
        np.testing.assert_array_equal(read, np.array(vectors, np.float32))
    assert layer.size() == sum(len(expected["tables"][table]) for table in TABLES)

    ids = {"user": tfra_models.STEP_IDS, "item": []}
    with tf.GradientTape() as tape:
        inputs = {name: tf.constant(part, tf.int64) for name, part in ids.items()}
        outputs = layer(inputs, training=True)
        loss = tf.reduce_sum(outputs["user"] * tfra_models.step_gradient())
    tape.gradient(loss, layer.trainable_variables)
    ids, vectors = zip(*expected["after"], strict=True)
    np.testing.assert_allclose(layer.read_rows(ids, "user"), vectors, atol=1e-6)
    assert set(tfra_models.STEP_IDS) <= set(ids)


def write_files(path, name, keys, values, shard="1of1_rank0_size1"):
    path.mkdir(exist_ok=True)
    np.array(keys, np.int64).tofile(path / f"{name}_mht_{shard}-keys")
    np.array(values, np.float32).tofile(path / f"{name}_mht_{shard}-values")


def read_back(path, optimizer, ids):
    layer = DynamicEmbedding(
        FeatureConfig(TableConfig("ads", 2, optimizer, seed=1), namespace="ad")
    )
    layer.build((None,))
    layer.restore_snapshot(path)
    return layer.read_rows(ids).numpy().tolist()


def test_shards_and_ranks_become_one_table(tmp_path):
    source = tmp_path / "files"
    for shard, rank in ((1, 0), (2, 0), (1, 1), (2, 1)):
        key = 10 * rank + shard
        write_files(source, "ads", [key], [[key, -key]], f"{shard}of2_rank{rank}_size2")
    import_tfra(source, tmp_path / "out", {"ads": "ads/ad"}, 2, "sgd", step=3)
    read = read_back(tmp_path / "out", "sgd", [1, 2, 11, 12])
    assert read == [[1, -1], [2, -2], [11, -11], [12, -12]]


def test_rows_without_slots_start_them_anew_and_are_counted(tmp_path):
    source = tmp_path / "files"
    write_files(source, "ads", [1, 2, 3], np.ones((3, 2)))
    write_files(source, "ads_more", [9], np.ones((1, 2)))
    write_files(source, "ads_more_ads_more-shadow_accumulator", [9], np.ones((1, 2)))
    write_files(source, "ads_adagrad_shadow_accumulator", [3, 1], [[4, 4], [2, 2]])
    (table,) = import_tfra(
        source, tmp_path / "out", {"ads": "ads/ad"}, 2, "adagrad", step=3
    )
    assert (table.rows, table.rows_without_slots) == (3, 1)
    layer = DynamicEmbedding(
        FeatureConfig(
            TableConfig("ads", 2, keras.optimizers.Adagrad(0.1), seed=1), namespace="ad"
        )
    )
    layer.build((None,))
    layer.restore_snapshot(tmp_path / "out")
    rows = layer.tables["ads"].save_rows()
    slots = dict(
        zip(rows.ids.numpy().tolist(), rows.values.numpy()[:, 2:], strict=True)
    )
    assert {key: row.tolist() for key, row in slots.items()} == {
        1: [2.0, 2.0],
        2: pytest.approx([0.1, 0.1]),
        3: [4.0, 4.0],
    }


def test_tables_become_columns_of_a_feature(tmp_path):
    for number, table in enumerate(("zero", "one")):
        write_files(tmp_path / "files", table, [7], [[number, number + 5]])
    tables = {"zero": "ads/context/0", "one": "ads/context/1"}
    import_tfra(tmp_path / "files", tmp_path / "out", tables, 2, "sgd", step=1)
    layer = DynamicEmbedding(
        {"context": FeatureConfig(TableConfig("ads", 2, "sgd"), per_column=True)}
    )
    layer.build({"context": (None, 2)})
    layer.restore_snapshot(tmp_path / "out")
    ids = tf.constant([[7, 7], [7, 8]], tf.int64)
    read = layer({"context": ids})["context"].numpy().tolist()
    assert read == [[[0, 5], [1, 6]], [[0, 5], [0, 0]]]


def test_a_table_becomes_the_only_column(tmp_path):
    write_files(tmp_path / "files", "ads", [7], [[1, 2]])
    tables = {"ads": "ads/0"}
    import_tfra(tmp_path / "files", tmp_path / "out", tables, 2, "sgd", step=1)
    layer = DynamicEmbedding(TableConfig("ads", 2, "sgd"))
    layer.build((None, 1))
    layer.restore_snapshot(tmp_path / "out")
    assert layer(tf.constant([[7]], tf.int64)).numpy().tolist() == [[[1, 2]]]


def test_of_equal_keys_the_last_counts(tmp_path):
    write_files(tmp_path / "files", "ads", [5, 6, 5], [[1, 1], [2, 2], [3, 3]])
    import_tfra(tmp_path / "files", tmp_path / "out", {"ads": "a/b"}, 2, "sgd", step=1)
    layer = DynamicEmbedding(FeatureConfig(TableConfig("a", 2, "sgd"), namespace="b"))
    layer.build((None,))
    layer.restore_snapshot(tmp_path / "out")
    assert layer.read_rows([5, 6]).numpy().tolist() == [[3, 3], [2, 2]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "nowhere"}, "Received: 'nowhere', which is none of these."),
        ({"optimizer": "lamb"}, "Received: optimizer='lamb'."),
        ({"optimizer": "adam"}, "Table 'ads' must have one table of the slot 'm'"),
        ({"tables": {"ads": "ads"}}, "as in 'users/user'.*Received: 'ads'."),
        ({"tables": {"ads": "/ad"}}, "as in 'users/user'.*Received: '/ad'."),
        ({"tables": {"ads": "ads/ad/x"}}, "'users/user/0'. Received: 'ads/ad/x'."),
        ({"tables": {"ads": "ads/ad/0/1"}}, "Received: 'ads/ad/0/1'."),
        ({"tables": {}}, r"to import. Received: tables={}. Name one, as in"),
        (
            {"tables": {"ads": "a/b", "more": "a/b"}},
            "Received: 'ads' and 'more' for 'a/b'. Give each a feature of its own.",
        ),
        ({"tables": {"users": "a/b"}}, r"saved: \['ads'\]. Received: 'users'."),
        ({"step": None}, "no `step`. Say --step."),
        ({"dim": 3}, "must have 12 bytes: dim=3 floats .* Received: 8 bytes."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_imported_is_refused_by_name(tmp_path, changes, message):
    write_files(tmp_path / "files", "ads", [1], [[1, 1]])
    arguments = {
        "source": tmp_path / "files",
        "tables": {"ads": "ads/ad"},
        "dim": 2,
        "optimizer": "sgd",
        "step": 1,
    }
    with pytest.raises(ValueError, match=message):
        import_tfra(directory=tmp_path / "out", **{**arguments, **changes})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_nothing_is_written_where_something_is(tmp_path, kind):
    out = tmp_path / "out"
    if kind == "directory":
        out.mkdir()
        (out / "notes.txt").touch()
    elif kind == "file":
        out.touch()
    else:
        out.symlink_to(tmp_path / "gone")
    before = sorted(tmp_path.rglob("*"))
    message = "out', which exists. Name another, or remove it."
    # Before the source is looked at.
    with pytest.raises(ValueError, match=message):
        import_tfra("nowhere", out, {"ads": "ads/ad"}, 2, "sgd", step=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_command_takes_each_table_once(tmp_path, capsys):
    write_files(tmp_path / "files", "ads", [1], [[1, 1]])
    command = ["import-tfra", str(tmp_path / "files"), str(tmp_path / "out")]
    command += ["--table", "ads=a/b", "--table", "ads=c/d"]
    command += ["--dim", "2", "--optimizer", "sgd", "--step", "1"]
    assert cli.main(command) == 2
    assert capsys.readouterr().err == (
        "tfctr: --table must name each table of TFRA once. Received: "
        "--table ads=a/b --table ads=c/d. Leave one out.\n"
    )
    assert not (tmp_path / "out").exists()


def test_the_command_offers_the_optimizers_that_can_be_imported():
    assert tuple(SLOTS) == command_module.OPTIMIZERS


def test_a_part_of_the_files_is_not_enough(tmp_path):
    write_files(tmp_path / "files", "ads", [1], [[1, 1]], "1of2_rank0_size1")
    with pytest.raises(ValueError, match="1 in .* that there are 2. Remove those"):
        import_tfra(tmp_path / "files", tmp_path / "o", {"ads": "a/b"}, 2, "sgd", 1)


def test_a_checkpoint_without_tables_says_what_it_has(tmp_path):
    path = tf.train.Checkpoint(v=tf.Variable(1.0)).save(str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"saved: \[\]. Received: 'ads'."):
        import_tfra(path, tmp_path / "out", {"ads": "a/b"}, 2, "sgd", 1)


def test_the_files_of_a_saver_lie_beside_the_checkpoint_with_the_steps(tmp_path):
    path = tf.train.Checkpoint(iter=tf.Variable(7)).save(str(tmp_path / "run"))
    write_files(tmp_path / "TFRADynamicEmbedding", "ads", [1], [[1, 1]])
    for number, source in enumerate((path, tmp_path)):
        out = tmp_path / f"out{number}"
        import_tfra(source, out, {"ads": "a/b"}, 2, "sgd")
        assert read_info(str(out / "0")).step == 7


def test_tfra_is_not_needed(tmp_path, monkeypatch):
    # To import it is an error.
    monkeypatch.setitem(sys.modules, "tensorflow_recommenders_addons", None)
    write_files(tmp_path / "files", "ads", [1], [[1, 1]])
    import_tfra(tmp_path / "files", tmp_path / "out", {"ads": "a/b"}, 2, "sgd", step=1)
    assert read_info(str(tmp_path / "out" / "0")).rows == 1
