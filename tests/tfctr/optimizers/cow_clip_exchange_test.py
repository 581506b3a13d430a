"""CowClip on two ranks: what one process does with the batches of both."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr import distributed
from tfctr.distributed import DistributedOptimizer
from tfctr.optimizers import CowClip

BATCH = 8
_rng = np.random.default_rng(4)
X = _rng.integers(0, 6, (6, BATCH, 2))
X[:, ::3, 1] = X[:, ::3, 0]  # Twice in one sample.
Y = _rng.normal(size=(6, BATCH)).astype("float32")
# By name: how many rows, and the gradient. Few rows are sent whole, many as rows.
TABLES = {"small": 6, "large": 500, "regularised": 6}
VARIANTS = ("paper", "reference_code")


def trained(variant):
    """The weights, and the shares of clipped rows, after six steps."""
    keras.utils.set_random_seed(7)
    tables = [
        keras.layers.Embedding(
            num_rows,
            3,
            name=name,
            embeddings_regularizer=keras.regularizers.L2(0.0)
            if name == "regularised"
            else None,
        )
        for name, num_rows in TABLES.items()
    ]
    inputs = keras.Input((2,), dtype="int64")
    parts = [keras.layers.Flatten()(table(inputs)) for table in tables]
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(parts))
    model = keras.Model(inputs, outputs)
    optimizer = CowClip(
        keras.optimizers.Adagrad(0.1), tables, 0.5, 1e-3, l2=1e-3, variant=variant
    )
    model.compile(DistributedOptimizer(optimizer), "mean_squared_error")
    ranks, rank = distributed.size(), distributed.rank()
    batches = [one.reshape(6, ranks, BATCH // ranks, -1)[:, rank] for one in (X, Y)]
    data = tf.data.Dataset.from_tensor_slices(tuple(batches))
    model.fit(data, shuffle=False, verbose=0)
    return {
        "weights": [weight.tolist() for weight in model.get_weights()],
        "shares": model.optimizer.clipped_share,
    }


def scenarios():
    return {variant: trained(variant) for variant in VARIANTS}


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_are_one_process_with_both_batches(of_ranks, variant):
    expected = trained(variant)
    assert all(0.1 < share < 0.99 for share in expected["shares"].values())
    for found in of_ranks(__file__):
        assert found[variant]["shares"] == pytest.approx(expected["shares"])
        pairs = zip(found[variant]["weights"], expected["weights"], strict=True)
        for here, there in pairs:
            np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-6)
