"""Real training over an SSD tier gives the loss of every step to the bit."""

import keras
import pytest

from keras_layers import TieredStorage
from keras_layers.dynamic_embedding import layers_of
from tfctr.callbacks import StepLosses
from tfctr.data import MovieLens, lookahead
from tfctr.models import DeepFM, DynamicTables

STEPS = 150


def losses_of(log, storage, ahead=0):
    """Losses of a short training on MovieLens, and how many rows its tables have."""
    keras.utils.set_random_seed(7)
    tables = DynamicTables(keras.optimizers.Adam(1e-3), storage)
    model = DeepFM(log.features, tables, 16, (32,), 0.2)
    model.compile(keras.optimizers.Adam(1e-3), "binary_crossentropy")
    batches = log.batches("train", 1024, seed=3).take(STEPS)
    model(next(iter(batches))[0])
    if ahead:
        batches = lookahead(batches, layers_of(model), ahead)
    recorder = StepLosses()
    model.fit(batches, shuffle=False, verbose=0, callbacks=[recorder])
    stats = [s for layer in layers_of(model) for s in layer.stats().values()]
    return recorder.losses, stats


@pytest.mark.parametrize(
    "share, ahead", [(0.05, 0), (0.05, 3), (0.0001, 0)], ids=["5 %", "ahead", "2 rows"]
)
def test_memory_for_a_few_rows_gives_the_same_losses_to_the_bit(
    data_dir, tmp_path, share, ahead
):
    log = MovieLens(data_dir / "ml-1m")
    expected, stats = losses_of(log, TieredStorage())
    ram = int(share * sum(s["known_rows"] * s["row_bytes"] for s in stats)) + 1
    losses, stats = losses_of(log, TieredStorage(ram=ram, ssd=tmp_path), ahead)
    assert losses == expected
    assert len(losses) == STEPS
    assert sum(s["rows"] * s["row_bytes"] for s in stats) <= ram
    assert all(s["rows_on_disk_only"] > 0.9 * s["known_rows"] for s in stats)
    assert all(s["rows_read"] > 0 for s in stats)
