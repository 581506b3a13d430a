"""A TFRA model of Keras 2 whose tables lie in memory and on SSD: ratings of films.

    PYTHONPATH=.venv/tf_keras python examples/tfra_tiered_table.py [path/to/ml-1m]

Everything is as TFRA's users write it but for one line, marked below. Without a path,
the ratings are made up.
"""

import argparse
import pathlib
import tempfile

import numpy as np
import tensorflow as tf
import tf_keras
from tensorflow_recommenders_addons import dynamic_embedding as de

from keras_layers.storage.tfra import TieredTableCreator


def ratings_of(path):
    """Returns users and films, int64 `(n, 2)`, and ratings, float32 `(n, 1)`."""
    if path is not None:
        file = pathlib.Path(path) / "ratings.dat"
        columns = np.loadtxt(file, dtype=np.int64, delimiter="::")[:, :3]
        return columns[:, :2], columns[:, 2:].astype(np.float32)
    rng = np.random.default_rng(0)
    users, films = rng.integers(0, 3000, 40_000), rng.zipf(1.3, 40_000) % 2000
    likes = rng.normal(size=3000)[users] + rng.normal(size=2000)[films]
    ratings = np.clip(np.round(3 + likes), 1, 5).astype(np.float32)
    return np.stack([users, films], axis=1), ratings[:, None]


def make_model(kv_creator):
    ids = tf_keras.Input((2,), dtype=tf.int64)
    vectors = [
        de.keras.layers.Embedding(
            16,
            name=name,
            devices=["/CPU:0"],
            initializer=tf.random_normal_initializer(stddev=0.05),
            kv_creator=kv_creator,
        )(ids[:, column])
        for column, name in enumerate(("user", "film"))
    ]
    hidden = tf_keras.layers.Concatenate()(vectors)
    for units in (64, 32):
        hidden = tf_keras.layers.Dense(units, "relu")(hidden)
    model = tf_keras.Model(ids, tf_keras.layers.Dense(1)(hidden))
    optimizer = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.legacy.Adam(0.003))
    model.compile(optimizer, "mse")
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", help="directory of MovieLens 1M")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    tf_keras.utils.set_random_seed(0)
    ids, ratings = ratings_of(args.path)
    with tempfile.TemporaryDirectory() as directory:
        # The one line. It was: kv_creator = de.CuckooHashTableCreator()
        kv_creator = TieredTableCreator(ram="256KB", ssd=f"{directory}/tables")
        model = make_model(kv_creator)
        fitted = model.fit(ids, ratings, batch_size=1024, epochs=args.epochs, verbose=2)
        segments = pathlib.Path(directory).rglob("segment-*")
        layers = (layer for layer in model.layers if hasattr(layer, "params"))
        # With a saver, rows would go to files of their own: see TieredTableCreator.
        saved = tf.train.Checkpoint(model).save(f"{directory}/checkpoint")
        print(f"error at first   {fitted.history['loss'][0]:.4f}")
        print(f"error at last    {fitted.history['loss'][-1]:.4f}")
        print(f"users and films  {sum(int(layer.params.size()) for layer in layers):,}")
        print(f"bytes on SSD     {sum(file.stat().st_size for file in segments):,}")
        print(f"checkpoint       {saved}")


if __name__ == "__main__":
    main()
