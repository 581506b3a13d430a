"""Deltas: what comes of them is the full export of the same moment."""

import json
import re
import shutil
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr import cli
from tfctr.export import apply_delta, delta, deltas, saved_model
from tfctr.export.draft import MANIFEST, new_directory, read_manifest, write_manifest
from tfctr.export.variable_files import VariableFiles, digest, write_variables

DIM = 3


def make_model(rows, bias=0.0, dim=DIM, default=0.5):
    """A model of two tables; `rows` maps (table, feature, id) to a number."""
    ads = TableConfig("ads", dim, keras.optimizers.SGD(), default_row=(default,) * dim)
    films = TableConfig("films", 2, keras.optimizers.SGD())
    features = {
        "ads": FeatureConfig(ads, per_column=True),
        "film": FeatureConfig(films),
    }
    inputs = {
        "ads": keras.Input((2,), dtype="int64", name="ads"),
        "film": keras.Input((), dtype="int64", name="film"),
    }
    layer = DynamicEmbedding(features, name="embedding")
    vectors = layer(inputs)
    both = [keras.layers.Flatten()(vectors["ads"]), vectors["film"]]
    joined = keras.layers.Concatenate()(both)
    dense = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones", name="y")
    model = keras.Model(inputs, dense(joined), name="two")
    dense.bias.assign([bias])
    for (feature, id), value in rows.items():
        width = 2 if feature == "film" else dim
        layer.write_rows([id], [np.arange(width) * 0.1 + value], feature=feature)
    return model


def asked(count=40):
    ids = np.arange(count)
    return {
        "ads": tf.constant(np.stack([ids, ids[::-1]], 1)),
        "film": tf.constant(ids),
    }


def predict(path):
    loaded = tf.saved_model.load(str(path))
    return loaded.signatures["serving_default"](**asked())["y"].numpy()


FIRST = {("ads/0", id): id / 10 for id in range(20)} | {("film", 2): 2.0}
MOMENTS = [
    (FIRST, 0.0),
    # One row is another one.
    ({**FIRST, ("film", 2): 3.0}, 0.0),
    # Keys come and go, and the network was trained.
    ({("ads/0", id): -id / 10 for id in range(5, 30)} | {("ads/1", 3): 1.0}, 1.5),
    # A table gets its first row, and the other one loses all.
    ({("film", 2): 1.0}, 1.5),
]


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Exports of all moments: `0` to `3`; and deltas, round to the first: `to-N`."""
    path = tmp_path_factory.mktemp("two")
    for n, (rows, bias) in enumerate(MOMENTS):
        saved_model(make_model(rows, bias), path / str(n), examples=asked(4))
    for n in range(4):
        delta(path / str((n - 1) % 4), path / str(n), path / f"to-{n}")
    return path


def test_deltas_in_sequence_are_the_full_exports(exports, tmp_path):
    served = exports / "0"
    predictions = [predict(served)]
    for n in range(1, 4):
        full = exports / str(n)
        served = apply_delta(served, exports / f"to-{n}", tmp_path / str(n))
        predictions.append(predict(full))
        np.testing.assert_array_equal(predict(served), predictions[n])
        assert np.any(predictions[n] != predictions[n - 1])
        # All files but those of variables are the same, warm-up requests too.
        assert files_of(served) == files_of(full)
        one, two = VariableFiles(served), VariableFiles(full)
        assert one.names == two.names
        for name in one.names:
            assert digest(one.read(name)) == digest(two.read(name))
    told, expected = read_manifest(served), read_manifest(exports / "3")
    assert {**told, "files": None} == {**expected, "files": None}


def files_of(directory):
    return sorted(p.relative_to(directory) for p in directory.rglob("*") if p.is_file())


def test_a_delta_holds_what_changed_alone(exports):
    facts = json.loads((exports / "to-1" / deltas.DELTA_MANIFEST).read_text())
    assert facts["rows"] == {
        "embedding/ads": {"changed": 0, "removed": 0},
        "embedding/films": {"changed": 1, "removed": 0},
    }
    files = VariableFiles(exports / "to-1")
    assert files.read("1/keys").tolist() == [[0, 2]]
    np.testing.assert_allclose(files.read("1/rows"), [[3.0, 3.1]], rtol=1e-6)
    # Nothing of the network, whose weights stayed.
    assert all(name[0] in "01" for name in files.names)


def test_equal_exports_have_an_empty_delta(tmp_path):
    model = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(1)])
    one, two = (saved_model(model, tmp_path / n) for n in "12")
    delta(one, two, tmp_path / "delta")
    served = VariableFiles(apply_delta(one, tmp_path / "delta", tmp_path / "3"))
    assert VariableFiles(tmp_path / "delta").names == []
    assert served.names == VariableFiles(one).names
    for name in served.names:
        assert digest(served.read(name)) == digest(VariableFiles(one).read(name))


def refused(message, call, *arguments):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(*arguments)


def test_a_delta_of_another_export_is_refused(exports, tmp_path):
    message = f"Received: '{exports / '2'}', which is "
    refused(message, apply_delta, exports / "2", exports / "to-1", tmp_path / "1")
    refused("which exists", apply_delta, exports / "0", exports / "to-1", exports)
    refused(
        "without 'tfctr_delta.json'", apply_delta, exports / "0", exports / "1", "x"
    )
    refused("without 'assets.extra/tfctr.json'", delta, exports, exports / "1", "x")
    assert list(tmp_path.iterdir()) == []


def rewritten(export, path, change, **facts):
    """An export whose rows of the first table are others."""
    with new_directory(path) as draft:
        shutil.copytree(export, draft, dirs_exist_ok=True)
        (draft / MANIFEST).unlink()
        shutil.rmtree(draft / "variables")
        files = VariableFiles(export)
        variables = {name: files.read(name) for name in files.names}
        variables[ROWS] = change(variables[ROWS])
        write_variables(draft, variables)
        write_manifest(draft, {**read_manifest(export), **facts})
    return path


ROWS = "tables/0/_rows/.ATTRIBUTES/VARIABLE_VALUE"


def test_exports_of_other_tables_have_no_delta(exports, tmp_path):
    half = rewritten(exports / "0", tmp_path / "half", lambda r: r.astype(np.float16))
    message = "table 'embedding/ads' of float32 3 wide and float16 3 wide. Copy"
    refused(message, delta, exports / "0", half, tmp_path / "delta")
    other = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    path = saved_model(other, tmp_path / "other")
    message = "Received: ['embedding/ads', 'embedding/films'] and []. Copy the whole"
    refused(message, delta, exports / "0", path, tmp_path / "delta")
    assert not (tmp_path / "delta").exists()


@pytest.mark.parametrize("what", ["0", "to-1"])
def test_every_half_copied_directory_is_refused(exports, tmp_path, what):
    whole = exports / what
    for lost in files_of(whole):
        broken = tmp_path / "broken"
        shutil.copytree(whole, broken)
        (broken / lost).unlink()
        pair = [exports / "0", exports / "to-1"]
        pair[what == "to-1"] = broken
        name = re.escape(lost.name)
        with pytest.raises(ValueError, match=f"{name}'( is damaged|. Copy the whole)"):
            apply_delta(*pair, tmp_path / "next")
        shutil.rmtree(broken)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_byte_is_refused(exports, tmp_path):
    broken = tmp_path / "delta"
    shutil.copytree(exports / "to-1", broken)
    [data] = (broken / "variables").glob("variables.data*")
    whole = bytearray(data.read_bytes())
    whole[0] ^= 1
    data.write_bytes(whole)
    refused(
        f"'{data}' is damaged: expected SHA-256",
        apply_delta,
        exports / "0",
        broken,
        "x",
    )


def test_what_is_not_the_later_export_is_refused(exports, tmp_path):
    base = rewritten(exports / "0", tmp_path / "base", lambda rows: rows + 1)
    message = f"must make variable '{ROWS}' with SHA-256"
    refused(message, apply_delta, base, exports / "to-1", tmp_path / "1")
    assert not (tmp_path / "1").exists()


def test_commands_make_and_apply_a_delta(exports, tmp_path, capsys):
    path, served = str(tmp_path / "delta"), str(tmp_path / "1")
    one, two = str(exports / "0"), str(exports / "2")
    assert cli.main(["export-delta", one, two, path]) == 0
    assert capsys.readouterr().out == (
        f"Written: {path}\n"
        "  embedding/ads    26 rows changed, 5 removed\n"
        "  embedding/films  0 rows changed, 1 removed\n"
    )
    assert cli.main(["apply-delta", one, path, served]) == 0
    assert capsys.readouterr().out == f"Written: {served}\n"
    np.testing.assert_array_equal(predict(served), predict(two))
    assert cli.main(["apply-delta", two, path, served]) == 2
    assert "is for the export" in capsys.readouterr().err


def test_a_server_answers_while_ten_deltas_arrive(exports, tmp_path):
    """It polls versions as TensorFlow Serving does, and drops the old one."""
    versions = 11
    expected = [predict(exports / str(n)).tobytes() for n in range(4)]
    assert len(set(expected)) == 4
    served = tmp_path / "served"
    shutil.copytree(exports / "0", served / "1")
    answers, errors = [], []
    has_begun, is_done = threading.Event(), threading.Event()
    request = asked()

    def newest():
        return max(int(p.name) for p in served.iterdir() if p.name.isdigit())

    def serve():
        loaded, current = None, 0
        try:
            while not (is_done.is_set() and current == newest()):
                if (version := newest()) != current:
                    loaded = tf.saved_model.load(str(served / str(version)))
                    current = version
                found = loaded.signatures["serving_default"](**request)["y"]
                answers.append((current, found.numpy().tobytes()))
                has_begun.set()
        except Exception as error:  # For the main thread.
            errors.append(error)
            has_begun.set()

    server = threading.Thread(target=serve)
    server.start()
    try:
        has_begun.wait()  # With the first version.
        for version in range(2, versions + 1):
            change = exports / f"to-{(version - 1) % 4}"
            apply_delta(served / str(version - 1), change, served / str(version))
    finally:
        is_done.set()
        server.join()
    assert errors == []
    assert {version for version, _ in answers} >= {1, versions}
    # Each answer is of one version, whole: that which was loaded.
    assert all(found == expected[(version - 1) % 4] for version, found in answers)
