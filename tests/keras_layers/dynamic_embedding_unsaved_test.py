"""What would be saved, or set, without the rows is refused, and says so."""

import re
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers.saved_models import (
    DIM,
    MODELS,
    SGD,
    data,
    embedding,
    fit,
    functional,
    layer_of,
    subclassed,
    table,
    tables,
)
from keras_layers import DynamicEmbedding


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(9)


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


def test_keras_passes_the_error_on(tmp_path):
    model = functional()
    model.save_weights(tmp_path / "model.weights.h5")
    other = functional(DynamicEmbedding(table(optimizer=SGD), name="embedding"))
    with warnings.catch_warnings(), pytest.raises(ValueError, match="slots of 'sgd'"):
        warnings.simplefilter("ignore")  # Keras warns before it gives the reason.
        other.load_weights(tmp_path / "model.weights.h5")


def test_tables_beyond_the_limit_are_not_saved(tmp_path):
    model = functional(embedding(save_limit="5KB"))
    layer = layer_of(model)
    layer.write_rows(np.arange(100), np.zeros((100, DIM)), 0)
    # 24 bytes of header, 3 weights and 6 slots, in eights.
    row_bytes = layer.stats()["ads"]["row_bytes"]
    held = f"{row_bytes / 10:.1f} KB"
    message = (
        "Layer 'embedding' saves at most save_limit='5KB' of rows through Keras, since "
        "they pass through memory whole and into one file. Received: "
        f"{held} of rows. Raise the limit if that fits: "
        f'DynamicEmbedding(..., save_limit="{row_bytes / 5:.1f} KB").'
    )
    for save in (
        lambda: model.save(tmp_path / "model.keras"),
        lambda: model.save_weights(tmp_path / "model.weights.h5"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            save()
    layer.save_limit = f"{row_bytes / 5:.1f} KB"
    model.save(tmp_path / "model.keras")


def test_a_limit_that_is_no_size_is_refused():
    with pytest.raises(ValueError, match=re.escape("Received: save_limit='much'.")):
        embedding(save_limit="much")


# Weights that are set without the rows.

PARTED = (
    r"rows of table 'ads' are those after {} updates, but the layer's weights are "
    r"those after {}\. The weights were set without the rows, as by `set_weights` or "
    r"EarlyStopping\(restore_best_weights=True\): neither can carry a table\."
)


UNSAVABLE = (
    r"Layer 'embedding' cannot be saved: its rows and its weights must be of the same "
    r"moment\. Received: rows of table 'ads' after \d updates, weights after \d\. If "
    r"weights were set without the rows, .* go back by `load_weights`, which carries "
    r"both\. If another thread trains the layer, save between its steps\."
)


def assert_refuses_everything(model, message, folder):
    ids, labels = data(1)
    for use in (
        lambda: model.predict(ids, verbose=0),
        lambda: model.evaluate(ids, labels, verbose=0),
        lambda: model.fit(ids, labels, verbose=0),
        lambda: model(ids),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match=message):
            use()
    for save in (
        lambda: model.save(folder / "parted.keras"),
        lambda: model.save_weights(folder / "parted.weights.h5"),
    ):
        with pytest.raises(ValueError, match=UNSAVABLE):
            save()


def test_weights_set_without_rows_are_loud(tmp_path):
    model = functional()
    fit(model)
    weights = model.get_weights()
    model.save_weights(tmp_path / "model.weights.h5")
    model.set_weights(weights)  # Of the same moment: nothing is lost.
    fit(model, compile_it=False)
    expected = tables(layer_of(model))
    model.set_weights(weights)
    assert_refuses_everything(model, PARTED.format(4, 2), tmp_path)
    for column, before in zip(tables(layer_of(model))[0], expected[0], strict=True):
        np.testing.assert_array_equal(column, before)
    model.load_weights(tmp_path / "model.weights.h5")
    assert np.isfinite(fit(model, compile_it=False)).all()


def test_weights_given_to_a_clone_are_loud(tmp_path):
    model = functional()
    fit(model)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    clone.compile("sgd", "mean_squared_error")
    assert_refuses_everything(clone, PARTED.format(0, 2), tmp_path)


def test_early_stopping_that_restores_weights_is_loud(tmp_path):
    model = functional()
    model.compile("sgd", "mean_squared_error")
    ids, labels = data(1)
    # The loss falls, so the first epoch has the largest.
    stop = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=1, restore_best_weights=True
    )
    model.fit(ids, labels, epochs=9, verbose=0, callbacks=[stop])
    assert_refuses_everything(model, PARTED.format(2, 1), tmp_path)


def test_the_best_model_of_a_checkpoint_carries_its_rows(tmp_path):
    model = functional()
    model.compile("sgd", "mean_squared_error")
    ids, labels = data(1)
    path = str(tmp_path / "best.weights.h5")
    save = keras.callbacks.ModelCheckpoint(
        path, "loss", mode="max", save_best_only=True, save_weights_only=True
    )
    model.fit(ids, labels, epochs=3, verbose=0, callbacks=[save])
    model.load_weights(path)
    assert layer_of(model).stats()["ads"]["step"] == 1
    assert np.isfinite(model.predict(ids, verbose=0)).all()


def test_a_step_of_another_thread_while_saving_is_loud(tmp_path, monkeypatch):
    model = functional()
    fit(model)
    model.run_eagerly = False
    model.make_train_function(force=True)
    table = layer_of(model).tables["ads"]
    save_rows = table.save_rows

    def interrupted():
        rows = save_rows()
        other = threading.Thread(target=model.train_on_batch, args=data(1))
        other.start()
        other.join()
        return rows

    monkeypatch.setattr(table, "save_rows", interrupted)
    message = (
        "Layer 'embedding' cannot be saved while another thread trains it. Received: "
        "table 'ads' after 2 updates when saving began, after 3 when it ended. Save "
        "between the steps of training."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        model.save(tmp_path / "model.keras")


# What Keras and TensorFlow would save without the rows.


NO_EXPORT = (
    r"Layer 'embedding' cannot be exported by Model\.export or tf\.saved_model\.save: "
    r"its rows are no TensorFlow variables, and the file would be without them\."
)


@pytest.mark.parametrize("name", ["functional", "sequential", "nested"])
def test_export_is_refused(name, tmp_path):
    model = MODELS[name]()
    with pytest.raises(ValueError, match=NO_EXPORT):
        model.export(tmp_path / "model", verbose=False)
    with pytest.raises(ValueError, match=NO_EXPORT):
        tf.saved_model.save(model, str(tmp_path / "model"))


def test_export_of_a_subclassed_model_is_refused(tmp_path):
    model = subclassed()
    model(data(1)[0])
    # Keras tries it on floats first, and that is refused before.
    with pytest.raises(ValueError, match="Layer 'embedding' expects ids of an integer"):
        model.export(tmp_path / "model", verbose=False)


LEGACY = (
    "Layer 'embedding' cannot be saved in the legacy format of Keras: its rows are no "
    "variables, and the file would be without them. Received: that format, as for a "
    "path that ends in '.h5' or '.hdf5'. Save the model as '.keras', or by "
    "model.save_weights as '.weights.h5', which carry them."
)


@pytest.mark.parametrize("name", ["functional", "sequential", "nested"])
def test_the_legacy_format_is_refused(name, tmp_path):
    model = MODELS[name]()
    layer_of(model).write_rows([7], [[4, 5, 6]], 1)
    with pytest.raises(NotImplementedError, match=re.escape(LEGACY)):
        model.save(tmp_path / "model.h5")


def test_a_checkpoint_of_the_legacy_format_is_refused_after_one_epoch(tmp_path):
    model = functional()
    model.compile("sgd", "mean_squared_error")
    save = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.h5"))
    with pytest.raises(NotImplementedError, match=re.escape(LEGACY)):
        model.fit(*data(1), epochs=2, verbose=0, callbacks=[save])
    assert layer_of(model).stats()["ads"]["step"] == 1


def test_a_tensorflow_checkpoint_is_refused(make, tmp_path):
    model = make()
    fit(model)
    message = (
        "Layer 'embedding' cannot be saved by tf.train.Checkpoint: its rows are no "
        "TensorFlow variables, and the checkpoint would be without them. Use "
        "model.save_weights, or model.save, which carry them."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
