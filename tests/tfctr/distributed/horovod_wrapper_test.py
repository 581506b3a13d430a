"""A script with Horovod's own Keras wrapper, and no callback of tfctr, is warned."""

import json
import re

import pytest

# Ranks train on different rows of one batch, two steps with each storage.
SCRIPT = """
import json
import sys

import horovod.keras
import horovod.tensorflow.keras
import keras
import numpy as np

from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from tfctr.distributed import ShardedStorage


def say(*words):
    print(*words, file=sys.stderr, flush=True)  # Where warnings go too.


def fit(wrapper, storage):
    say("start of", type(storage).__name__)
    keras.utils.set_random_seed(1)
    ids = keras.Input((2,), dtype="int64")
    table = TableConfig("ads", 4, keras.optimizers.SGD(0.1), "normal")
    hidden = keras.layers.Flatten()(DynamicEmbedding(table, storage=storage)(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(hidden))
    model.compile(wrapper(keras.optimizers.SGD(0.1)), "mse")
    first = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: say("end of batch", batch)
    )
    rank = horovod.keras.rank()
    batch = np.arange(8).reshape(4, 2)[rank::2]
    labels = np.ones((2, 1)) * rank
    model.fit(batch, labels, batch_size=1, verbose=0, callbacks=[first])
    say("weights", json.dumps(model.layers[-1].kernel.numpy().ravel().tolist()))


horovod.keras.init()
fit(horovod.keras.DistributedOptimizer, TieredStorage())
fit(horovod.tensorflow.keras.DistributedOptimizer, ShardedStorage())
"""
WARNINGS = {
    "TieredStorage": "2 ranks were started, and each trains a table of its own",
    "ShardedStorage": "A table is trained by 2 ranks, and nothing of tfctr has seen",
}


@pytest.fixture(scope="module")
def printed(horovodrun, tmp_path_factory):
    """What each rank has printed, by storage."""
    script = tmp_path_factory.mktemp("script") / "train.py"
    script.write_text(SCRIPT)
    lines = horovodrun(2, script).splitlines()
    of_ranks = []
    for rank in range(2):
        prefix = f"[{rank}]<stderr>:"
        text = "\n".join(
            line.removeprefix(prefix) for line in lines if line.startswith(prefix)
        )
        parts = re.split(r"start of (\w+)\n", text)[1:]
        of_ranks.append(dict(zip(parts[::2], parts[1::2], strict=True)))
    return of_ranks


@pytest.mark.multiprocess
@pytest.mark.parametrize("storage", WARNINGS)
def test_each_rank_is_warned_once_before_its_first_step_ends(printed, storage):
    for of_rank in printed:
        before, _, after = of_rank[storage].partition("end of batch 0")
        assert before.count(WARNINGS[storage]) == 1
        assert "end of batch 1" in after and WARNINGS[storage] not in after


@pytest.mark.multiprocess
@pytest.mark.parametrize("storage", WARNINGS)
def test_the_dense_weights_part_as_the_warning_says(printed, storage):
    weights = [
        json.loads(re.search("weights (.*)", of_rank[storage])[1])
        for of_rank in printed
    ]
    assert weights[0] != weights[1]
