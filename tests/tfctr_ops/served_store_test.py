"""`ServedEmbeddingStore`: one store for each name, of rows that are only read."""

import re

import pytest
import tensorflow as tf

from tfctr_ops import library

ARGUMENTS = {
    "table": "ads",
    "dim": 2,
    "num_features": 1,
    "default_row": [3.0, 4.0],
}


def make(name, **options):
    ops = library.load()
    arguments = {**ARGUMENTS, **options}
    return ops.tfctr_served_embedding_store(shared_name=name, **arguments)


def read(store):
    ops, step = library.load(), tf.constant(-1, tf.int64)
    ids = tf.constant([5, 6], tf.int64)
    return ops.tfctr_embedding_store_read(store, ids, [0], step, dim=2).numpy().tolist()


def destroy(store):
    tf.raw_ops.DestroyResourceOp(resource=store, ignore_lookup_error=False)


def test_a_name_is_one_store_until_it_is_destroyed():
    store, again, other = make("a"), make("a"), make("b")
    ids = tf.constant([5], tf.int64)
    library.load().tfctr_embedding_store_write(store, ids, [0], [[1.0, 2.0]])
    assert read(again) == [[1.0, 2.0], [3.0, 4.0]]
    assert read(other) == [[3.0, 4.0], [3.0, 4.0]]
    destroy(store)
    assert read(make("a")) == [[3.0, 4.0], [3.0, 4.0]]
    destroy(make("a"))
    destroy(other)


def test_rows_go_to_the_temporary_directory_of_the_system(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    store = make("c", ram_bytes=0)
    assert len(list(tmp_path.glob("tfctr-*"))) == 1
    destroy(store)
    assert list(tmp_path.glob("tfctr-*")) == []
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    message = "Table 'ads' keeps rows in the system's temporary directory, and there is"
    with pytest.raises(tf.errors.OpError, match=re.escape(message)):
        make("d", ram_bytes=0)


def test_its_handle_is_a_scalar():
    graph = tf.Graph()
    with graph.as_default():
        assert make("e").shape == []


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dim": 3}, "`default_row` must have `dim` values. Received: 2 values, dim=3"),
        (
            {"num_features": 1 << 40},
            "features. Received: num_features=1099511627776.",
        ),
    ],
)
def test_wrong_sizes_are_refused(options, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        make("f", **options)
