"""Sharded tables: the export of two ranks is that of one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig
from tfctr import distributed
from tfctr.callbacks import Checkpoint
from tfctr.checkpoint import restore_weights
from tfctr.distributed import ShardedStorage, engine
from tfctr.export import saved_model


def make_model():
    keras.utils.set_random_seed(1)
    table = TableConfig("ads", 4, keras.optimizers.Adam(0.05), seed=3)
    ids = keras.Input((3,), dtype="int64", name="ids")
    layer = DynamicEmbedding(table, storage=ShardedStorage(), name="embedding")
    flat = keras.layers.Flatten()(layer(ids))
    model = keras.Model(ids, keras.layers.Dense(1, name="y")(flat), name="sharded")
    rows = np.random.default_rng(0).normal(size=(60, 4))
    for column in range(3):
        layer.write_rows(np.arange(60) * 2**50, rows + column, feature=column)
    return model


BATCH = np.arange(90).reshape(30, 3) % 80 * 2**50


def export(directory):
    """Exports on every rank; returns what there is, what fails, and the predictions."""
    model = make_model()
    path = saved_model(model, f"{directory}/1", examples=BATCH)
    saved_model(model, path.with_name("3"), max_bytes=2000)
    files = sorted(file.name for file in path.parent.iterdir())
    errors = []
    for target, options in [(path, {}), (f"{directory}/2", {"examples": {"x": [1]}})]:
        try:
            saved_model(model, target, **options)
        except (ValueError, OSError) as error:
            errors.append(f"{type(error).__name__}: {error}")
    engine.barrier("exported")
    return {
        "files": files,
        "errors": errors,
        "predictions": model(BATCH, training=False).numpy().tolist(),
    }


def train(directory):
    """Two steps on each rank's share of a batch, and their checkpoint."""
    model = make_model()
    optimizer = distributed.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "mse", jit_compile=False)
    examples = tf.data.Dataset.from_tensor_slices((BATCH[:28], np.ones((28, 1))))
    share = examples.shard(distributed.size(), distributed.rank())
    checkpoint = Checkpoint(directory)
    data, _ = checkpoint.resume(model, share.batch(14 // distributed.size()))
    callbacks = [distributed.BroadcastCallback(), checkpoint]
    model.fit(data, callbacks=callbacks, shuffle=False, verbose=0)
    return model(BATCH, training=False).numpy().tolist()


@pytest.mark.multiprocess
def test_a_checkpoint_of_two_ranks_exports_as_that_of_one(run_ranks, tmp_path):
    trained = {
        "two": run_ranks(2, __file__, "train", str(tmp_path / "two"))[0],
        "one": train(str(tmp_path / "one")),
    }
    before = make_model()(BATCH, training=False)
    for name, expected in trained.items():
        model = make_model()
        restore_weights(model, tmp_path / name)
        path = saved_model(model, tmp_path / f"export-{name}" / "1")
        served = tf.saved_model.load(str(path)).signatures["serving_default"]
        found = served(ids=tf.constant(BATCH))["y"]
        np.testing.assert_allclose(found, expected, atol=1e-6)
        # Sums of two ranks are added in another order.
        np.testing.assert_allclose(found, trained["one"], atol=1e-4)
        assert np.abs(found - before).max() > 0.05


@pytest.mark.multiprocess
def test_two_ranks_export_what_one_does(run_ranks, tmp_path):
    first, second = run_ranks(2, __file__, "export", str(tmp_path / "two"))
    alone = export(str(tmp_path / "one"))
    assert first["files"] == second["files"] == alone["files"] == ["1", "3"]
    for asked in ("/two/1', which exists", "must be a batch of inputs"):
        [own] = [text for text in first["errors"] if asked in text]
        assert own.startswith("ValueError")
        [told] = [text for text in second["errors"] if asked in text]
        assert told.startswith("OSError: Rank 0 could not export the model to '")
    for version in ("1", "3"):
        one, two = (tmp_path / name / version / "variables" for name in ("one", "two"))
        [data] = one.glob("variables.data*")
        assert data.read_bytes() == (two / data.name).read_bytes()
    served = tf.saved_model.load(str(tmp_path / "two" / "1")).signatures[
        "serving_default"
    ]
    found = served(ids=tf.constant(BATCH))["y"]
    np.testing.assert_allclose(found, alone["predictions"], atol=1e-6)
