"""A step of training of `DeepFM`: each table by its own optimizer."""

import keras
import numpy as np
import pytest

from tfctr.feature import Feature
from tfctr.models import DeepFM, DynamicTables

DIM = 3


@pytest.mark.parametrize("linear_rate", [None, 0.125])
def test_a_step_moves_weights_and_vectors_by_their_gradients(linear_rate):
    # Two fields and no MLP: p = sigmoid(bias + w_1 + w_2 + <v_1, v_2> + MLP), where
    # the last layer is set to zero.
    tables = DynamicTables(
        keras.optimizers.SGD(0.5),
        initializer=keras.initializers.RandomNormal(0, 1),
        linear_optimizer=linear_rate and keras.optimizers.SGD(linear_rate),
    )
    model = DeepFM([Feature("ids", "int64", width=2)], tables, DIM, hidden_units=())
    dense = [np.zeros((2 * DIM, 1)), np.array([0.25])]
    model.get_layer("deep_logit").set_weights(dense)
    model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy", run_eagerly=True)
    ids, label = np.array([[7, 8]]), np.array([[1.0]])
    vectors, weights = model.get_layer("vectors"), model.get_layer("weights")
    v = vectors({"ids": ids}, training=True)["ids"].numpy()[0]
    error = 1 / (1 + np.exp(-0.25 - v[0] @ v[1])) - 1.0
    model.train_on_batch({"ids": ids}, label)
    for column, other in ((0, 1), (1, 0)):
        where = ids[0, column : column + 1], f"ids/{column}"
        expected = v[column] - 0.5 * error * v[other]
        np.testing.assert_allclose(vectors.read_rows(*where)[0], expected, rtol=1e-5)
        expected = [-(linear_rate or 0.5) * error]
        np.testing.assert_allclose(weights.read_rows(*where)[0], expected, rtol=1e-5)
