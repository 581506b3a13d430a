"""A model of dense weights alone, and what it trains on."""

import keras
import numpy as np

X = np.random.default_rng(1).normal(size=(31, 3)).astype("float32")
Y = (X.sum(1, keepdims=True) + X[:, :1] ** 2 > 0.5).astype("float32")


def dense_model(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
