"""Exports over embedding stores: loaded by TensorFlow and the library of ops alone."""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig
from keras_layers.dynamic_embedding import layers_of
from tfctr.export import check, checking, delta, saved_model, serving_process
from tfctr.export.draft import read_manifest
from tfctr_ops import library

# Loads all exports at once, tells what they answer, and lets them go.
PROGRAM = """
import gc, glob, json, sys
import numpy as np
import tensorflow as tf
library, request, answers, ssd, *exports = sys.argv[1:]
with np.load(request) as file:
    request = {name: tf.constant(file[name]) for name in file.files}
facts = {}
try:
    tf.saved_model.load(exports[0])
except Exception as error:
    facts["without_library"] = str(error)
tf.load_op_library(library)
loaded = [tf.saved_model.load(export) for export in exports]
found = [each.signatures["serving_default"](**request) for each in loaded]
np.savez(answers, **{str(n): each["click"].numpy() for n, each in enumerate(found)})
facts["scratch"] = len(glob.glob(f"{ssd}/tfctr-*"))
del loaded, found
gc.collect()
facts["left"] = glob.glob(f"{ssd}/tfctr-*")
known = {"keras_layers", "tfctr", "tfctr_ops"}
facts["foreign"] = sorted(known & set(sys.modules))
print(json.dumps(facts))
"""


def request(batch):
    """The tensors of `serving_default`, written out by hand."""
    tensors = {name: part for name, part in batch.items() if name != "liked"}
    tensors["words"] = tf.constant(batch["words"])
    arrays = {name: np.asarray(part) for name, part in tensors.items()}
    arrays["words"] = arrays["words"].astype(np.bytes_)
    liked = batch["liked"]
    return arrays | {
        "liked": np.asarray(liked.values),
        "liked_row_splits": np.asarray(liked.row_splits),
    }


def test_a_process_without_tfctr_predicts_to_the_bit(clicks, batch, tmp_path):
    inputs = batch(64, largest=100)  # Half of the ids have no row.
    ssd = tmp_path / "ssd"
    options = {"tables": "store", "ram": "2KB", "ssd": ssd}
    in_memory = saved_model(clicks, tmp_path / "1", tables="store")
    on_disk = saved_model(clicks, tmp_path / "2", **options)
    before = clicks.predict_on_batch(inputs)
    [layer] = layers_of(clicks)
    layer.write_rows(np.arange(50), np.full((50, 4), 2.0), feature="history")
    changed = saved_model(clicks, tmp_path / "3", **options)
    after = clicks.predict_on_batch(inputs)
    assert np.any(before != after)
    moved = tmp_path / "moved" / "7"
    shutil.copytree(in_memory, moved)
    shutil.rmtree(in_memory)
    assert not ssd.exists()  # Of the server, and not of this process.
    np.savez(tmp_path / "request.npz", **request(inputs))
    paths = [tmp_path / "request.npz", tmp_path / "answers.npz", ssd]
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, library.path(), *paths]
        + [moved, on_disk, changed],
        capture_output=True,
        text=True,
        env={n: text for n, text in os.environ.items() if n != "PYTHONPATH"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert "Tfctr>" in facts["without_library"]
    assert (facts["scratch"], facts["left"], facts["foreign"]) == (4, [], [])
    with np.load(tmp_path / "answers.npz") as answers:
        np.testing.assert_array_equal(answers["0"], before)
        np.testing.assert_array_equal(answers["1"], before)
        np.testing.assert_array_equal(answers["2"], after)


def sequential(dim=2):
    table = TableConfig("ads", dim, keras.optimizers.SGD(1.0), initializer="ones")
    layer = DynamicEmbedding(table, name="ads")
    return keras.Sequential([keras.Input((1,), dtype="int64", name="ids"), layer])


def test_the_rows_with_the_most_updates_stay_in_memory(tmp_path):
    model = sequential(dim=256)
    hot, cold = np.arange(1000), np.arange(1000, 6000)
    rows = np.random.default_rng(0).random((5000, 256))
    model.layers[0].write_rows(cold, rows, feature=0)
    model.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=True)
    for _ in range(3):
        model.train_on_batch(hot[:, np.newaxis], np.zeros((1000, 1, 256)))
    # The hot ones are a third of it, since no shard has exactly its share.
    path = saved_model(model, tmp_path / "1", tables="store", ram=3000 * 1048)
    loaded = tf.saved_model.load(path)
    [table] = loaded.tables

    def rows_read_for(ids):
        before = stats()
        [found] = loaded.signatures["serving_default"](
            ids=tf.constant(ids[:, np.newaxis])
        ).values()
        expected = model(ids[:, np.newaxis], training=False)
        np.testing.assert_array_equal(found, expected)
        return stats() - before

    def stats():
        ops = library.load()
        return int(ops.tfctr_embedding_store_stats(table.resource_handle)[9])

    assert rows_read_for(hot) == 0
    assert rows_read_for(cold) > 1000  # And some are still in buffers.


def test_check_links_the_library(clicks, batch, tmp_path, monkeypatch):
    inputs = batch(5, largest=100)

    def serve(path, rows, threads, *linked):
        # In this process, which is faster.
        assert linked == (str(library.path()),)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            serving_process.main(str(path), str(rows), threads, *linked)
        told = json.loads(printed.getvalue())
        return {name: told[name] for name in told if name != "foreign_modules"}

    monkeypatch.setattr(checking, "_serve", serve)
    path = saved_model(
        clicks, tmp_path / "1", tables="store", ram="1KB", examples=inputs
    )
    assert read_manifest(path)["store"] == {"ram": 1000, "ssd": None}
    result = check(path, threads=2)
    assert result["is_equal"] and result["tolerance"] == 1e-6
    assert result["tables"] == {"embedding/ads": 250, "embedding/films": 103}


def test_a_damaged_snapshot_does_not_load(tmp_path):
    model = sequential()
    model.layers[0].write_rows([1, 2], np.ones((2, 2)), feature=0)
    path = saved_model(model, tmp_path / "1", tables="store")
    snapshot = path / "assets" / "tfctr_tables" / "0"
    manifest = snapshot / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with pytest.raises(tf.errors.OpError, match=re.escape(f"{manifest}")):
        tf.saved_model.load(path)
    with pytest.raises(ValueError, match=re.escape(f"'{manifest}' is damaged")):
        read_manifest(path)


def test_there_is_no_delta(tmp_path):
    path = saved_model(sequential(), tmp_path / "1", tables="store")
    message = f"with tables='stock'. Received: '{path}', with tables='store'. Copy"
    with pytest.raises(ValueError, match=re.escape(message)):
        delta(path, path, tmp_path / "delta")


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"tables": "store", "quantize": "int8"},
            "`quantize` and `max_bytes` go with tables='stock'. Received: "
            "tables='store', quantize='int8'.",
        ),
        (
            {"tables": "store", "max_bytes": "1GB"},
            "Received: tables='store', max_bytes='1GB'.",
        ),
        (
            {"ram": "1GB", "ssd": "/nvme"},
            "`ram` and `ssd` go with tables='store'. Received: tables='stock', "
            "ram='1GB', ssd='/nvme'.",
        ),
        (
            {"tables": "store", "ssd": pathlib.Path("/nvme")},
            "With `ssd`, `ram` must say how many bytes of rows stay in memory. "
            "Received: ram=None, ssd='/nvme'.",
        ),
        ({"tables": "store", "ram": "much"}, "Received: ram='much'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        saved_model(sequential(), tmp_path / "1", **options)
    assert list(tmp_path.iterdir()) == []
