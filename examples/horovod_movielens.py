"""Trains DeepFM on MovieLens 1M: does a user rate a film 4 or 5?

    python examples/horovod_movielens.py path/to/ml-1m
    horovodrun -np 2 python examples/horovod_movielens.py path/to/ml-1m

Alone and on many ranks it is the same training: each rank takes its slice of every
batch, and the rows of the tables are spread over the ranks. Started again, it resumes
from its newest checkpoint.
"""

import argparse

import keras

from keras_layers import TieredStorage
from tfctr import distributed
from tfctr.callbacks import Checkpoint
from tfctr.data import MovieLens, Position
from tfctr.models import DeepFM, DynamicTables


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="directory of the MovieLens 1M files")
    parser.add_argument("--directory", default="runs/horovod_movielens")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=1024, help="of all ranks")
    args = parser.parse_args()

    distributed.init()
    keras.utils.set_random_seed(1)
    log = MovieLens(args.path)
    tables = DynamicTables(
        keras.optimizers.Adam(1e-3), distributed.ShardedStorage(TieredStorage())
    )
    model = DeepFM(log.features, tables, dim=16, hidden_units=(128, 128))
    model.compile(
        distributed.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
        "binary_crossentropy",
        weighted_metrics=[keras.metrics.AUC(name="auc")],
    )

    def batches_from(batch):
        order = log.batches("train", args.batch_size, 1, Position(0, batch))
        return distributed.shard(order).prefetch(2)

    checkpoint = Checkpoint(args.directory)
    train, initial_epoch = checkpoint.resume(model, batches_from)
    # Weights of 0 mark examples that fill up a slice.
    test = distributed.shard(log.batches("test", 8192), training=False)
    average = distributed.MetricAverage()
    model.fit(
        train,
        initial_epoch=initial_epoch,
        epochs=args.epochs,
        shuffle=False,  # The log shuffles by itself, and can resume.
        callbacks=[distributed.BroadcastCallback(), average, checkpoint],
        verbose=2 if distributed.is_main() else 0,
    )
    model.evaluate(test, callbacks=[average], verbose=0)
    if distributed.is_main():
        print(f"test AUC {average.results['auc']:.4f}")


if __name__ == "__main__":
    main()
