"""What storages over ranks are made of; what their tables save, restore and refuse."""

import os
import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import (
    CountAdmission,
    DynamicEmbedding,
    FeatureConfig,
    TableConfig,
    TieredStorage,
)
from keras_layers.storage.storage import SavedTable
from tfctr.distributed import ReplicatedStorage, ShardedStorage, engine, save_model
from tfctr.distributed.sharded_storage import ShardedTable

IDS = np.arange(40)


def sgd(name="ads", dim=2, **options):
    return TableConfig(name, dim, keras.optimizers.SGD(1.0), seed=3, **options)


def one_table(**options):
    inputs = keras.Input((1,), dtype="int64")
    return keras.Model(
        inputs, DynamicEmbedding(sgd(**options), ShardedStorage())(inputs)
    )


def two_tables(storage):
    """Two groups of tables in one layer, one with an admission."""
    features = {
        "user": FeatureConfig(sgd("users", 2)),
        "item": FeatureConfig(sgd("items", 3, admission=CountAdmission(2))),
    }
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in features}
    layer = DynamicEmbedding(features, storage=storage)
    outputs = keras.layers.Concatenate()(list(layer(inputs).values()))
    return keras.Model(inputs, outputs)


def layer_of(model):
    [layer] = [layer for layer in model.layers if hasattr(layer, "tables")]
    return layer


def read_all(model):
    layer = layer_of(model)
    return [
        layer.read_rows(IDS, feature=name).numpy().tolist() for name in layer.features
    ]


def read(model):
    return layer_of(model).read_rows(IDS, feature=0).numpy().tolist()


def saved_and_loaded(path):
    model = one_table()
    layer_of(model).write_rows(IDS, np.stack([IDS, -IDS], 1), feature=0)
    save_model(model, path)
    # On as many ranks, each of which takes its own from the file.
    loaded = keras.models.load_model(path)
    sizes = [layer_of(loaded).size(), layer_of(model).size()]
    return [read(model), read(loaded), sizes]


def save_alone(path):
    """Trains and saves as one process does; returns the rows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "2 ranks were started")
        model = two_tables(TieredStorage())
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(dict.fromkeys(model.input, IDS), training=True))
        tape.gradient(loss, model.trainable_variables)
    model.save_weights(path)
    return read_all(model)


def loaded_from_one_process(path):
    saved = save_alone(path) if engine.rank() == 0 else None
    engine.barrier("saved")
    model = two_tables(ShardedStorage())
    model.load_weights(path)
    return [saved, read_all(model)]


def refused(path):
    messages = []
    for action in (
        lambda model: model.save(f"{path}-by-keras.keras"),
        lambda model: save_model(model, path),
    ):
        try:
            action(one_table(admission=CountAdmission(2)))
        except ValueError as error:
            messages.append(str(error))
    # Refused before anything is written.
    messages.append("file" if os.path.exists(path) else "no file")
    try:
        save_model(one_table(), f"{path}/no/such/place.keras")
    except OSError as error:
        messages.append(str(error))
    return messages


def scenarios(directory):
    return {
        "saved_and_loaded": saved_and_loaded(f"{directory}/model.keras"),
        "loaded": loaded_from_one_process(f"{directory}/one.weights.h5"),
        "refused": refused(f"{directory}/refused.keras"),
    }


@pytest.fixture(scope="module")
def found(tables_of_ranks):
    return tables_of_ranks(__file__)


@pytest.mark.multiprocess
def test_a_model_in_one_file_is_that_of_all_ranks(found, tables_directory):
    alone = keras.models.load_model(tables_directory / "model.keras")
    for of_rank in found:
        rows, loaded, sizes = of_rank["saved_and_loaded"]
        assert loaded == rows == read(alone) == np.stack([IDS, -IDS], 1).tolist()
        assert sizes[0] == sizes[1] < len(IDS)
    assert layer_of(alone).size() == len(IDS)


@pytest.mark.multiprocess
def test_two_ranks_load_what_one_process_saved(found):
    saved, _ = found[0]["loaded"]
    assert np.any(saved[0]) and np.any(saved[1])
    for of_rank in found:
        _, loaded = of_rank["loaded"]
        assert loaded == saved


@pytest.mark.multiprocess
def test_what_cannot_be_saved_is_refused_on_all_ranks(found):
    for rank, of_rank in enumerate(found):
        kept, counted, written, *missing = of_rank["refused"]
        assert kept.startswith(
            "Table 'ads' has its rows on 2 ranks, and Keras saves those of one. "
            f"Received: a save on rank {rank}. Save with tfctr.callbacks.Checkpoint"
        )
        assert "whose counts are on 2 ranks. Received: a model to be saved" in counted
        assert written == "no file" and len(missing) == 1
    assert missing[0].startswith("Rank 0 could not save the model to '")


@pytest.mark.parametrize("storage", [ShardedStorage, ReplicatedStorage])
def test_storages_come_back_from_their_config(storage):
    made = storage(TieredStorage(ram="1GB"), reduction="sum")
    copy = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(made)
    )
    assert type(copy) is storage
    config = copy.get_config()
    assert config["reduction"] == "sum"
    assert config["inner"].get_config()["ram"] == "1GB"
    assert made.forecast(sgd(), 1000) == TieredStorage(ram="1GB").forecast(sgd(), 1000)


@pytest.mark.parametrize("storage", [ShardedStorage, ReplicatedStorage])
def test_other_reductions_are_refused(storage):
    with pytest.raises(ValueError, match="'mean', 'sum'. Received: reduction='max'"):
        storage(reduction="max")


def test_other_wire_dtypes_are_refused():
    with pytest.raises(ValueError, match="Received: wire_dtype='int8'"):
        ShardedStorage(wire_dtype="int8")


@pytest.mark.parametrize(
    "parts, features, read, owner",
    [
        (["a", "b"], [0, 1], ["b"], (0, 1)),
        # Owners depend on the numbers of features, and on how many ranks there are.
        (["a", "b"], [1, 0], ["a", "b"], (1, 2)),
        (["a", "b", "c"], [0, 1], ["a", "b", "c"], (1, 2)),
        (["a"], [0, 1], ["a"], (1, 2)),
    ],
)
def test_a_rank_reads_no_part_that_has_none_of_its_rows(
    monkeypatch, parts, features, read, owner
):
    monkeypatch.setattr(engine, "size", lambda: 2)
    monkeypatch.setattr(engine, "rank", lambda: 1)
    restored = []
    own = types.SimpleNamespace(restore=restored.append)
    table = ShardedTable(own, sgd(), 2, ShardedStorage())
    table.restore(SavedTable(parts, features, (7, 8)))
    assert restored == [SavedTable(read, features, (7, 8), *owner)]
