"""One training run of a study, in a process of its own."""

import concurrent.futures
import math
import multiprocessing
import time
from concurrent.futures.process import BrokenProcessPool

from tfctr.config import TrainConfig


def train_apart(config: TrainConfig) -> dict[str, float]:
    """Trains in a process of its own, which gives all its memory back.

    Returns:
        What `COLUMNS` of the results calls `auc`, `log_loss`, `minutes` and
        `clipped_share`; of a training that diverged, NaNs and the minutes.

    Raises:
        ChildProcessError: If the process was killed.
    """
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        try:
            return pool.submit(_train, config).result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "The process of a training run must end by itself. Received: it was "
                "killed, most often for want of memory. Make room, and say the same "
                "again: what is done is not done anew."
            ) from error


def _train(config: TrainConfig) -> dict[str, float]:
    import tensorflow as tf

    from tfctr import training
    from tfctr.callbacks import TrainingDiverged

    started = time.monotonic()
    diverged = {"auc": math.nan, "log_loss": math.nan, "clipped_share": math.nan}
    try:
        _, result = training.train(config)
    except TrainingDiverged:
        result = diverged
    except tf.errors.InvalidArgumentError as error:
        if "received a gradient that is NaN" not in error.message:
            raise
        result = diverged
    else:
        vectors = result["tables"]["vectors/vectors"]
        result["clipped_share"] = vectors["clipped_share"]
    minutes = (time.monotonic() - started) / 60
    return {
        "auc": float(result["auc"]),
        "log_loss": float(result["log_loss"]),
        "minutes": minutes,
        "clipped_share": float(result["clipped_share"]),
    }
