"""`KStepMerge`: the merges of `KStepAdam` that no schedule can know."""

import hashlib
from typing import Any

import keras

from tfctr.callbacks.training_guard import TrainingGuard
from tfctr.distributed import engine
from tfctr.distributed.ranks import check_not_compiled_by_xla
from tfctr.optimizers import KStepAdam


class KStepMerge(TrainingGuard):
    """Merges the ranks where their weights are looked at, not only every k steps.

    `KStepAdam` merges on its schedule by itself. This callback merges before a
    validation and at the end of an epoch and of the training, unless the last step has
    merged, so that all ranks judge and save the same model; `Checkpoint` does so before
    it saves. The schedule goes on as it was. What else of the model is float and not
    trained, such as statistics of batch normalisation, is averaged with the weights.

    After the merge at the end of an epoch it checks that the ranks are equal to the
    bit, and logs `merges`, their number so far, and `largest_step`, the largest |Δx| /
    learning_rate of the epoch on any rank. A value above 10 means that a denominator
    was frozen too early: raise `warmup_merges`.

    All ranks need it, at the same place among the callbacks: before those that save.

    Raises:
        ValueError: If the model is not compiled with `KStepAdam`, is compiled for XLA
            or not built, or the ranks differ after a merge.

    Example:

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(KStepAdam(1e-3, k=4), "mean_squared_error")
    >>> x, y = np.ones((16, 2)), np.ones((16, 1))
    >>> log = model.fit(x, y, batch_size=2, verbose=0, callbacks=[KStepMerge()])
    >>> log.history["merges"]
    [8]
    """

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        optimizer = self._optimizer()
        if not self.model.built:
            raise ValueError(
                "A model shows what is to be averaged once it is built. Received: "
                f"model '{self.model.name}', not built. Call it on one batch "
                "before `fit`."
            )
        check_not_compiled_by_xla(self.model)
        if optimizer.average_also(self.model.non_trainable_weights):
            self.model.make_train_function(force=True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._optimizer().take_largest_step()

    def on_test_begin(self, logs: Any = None) -> None:
        self._optimizer().merge()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        optimizer = self._optimizer()
        optimizer.merge()
        largest = self._compare_ranks(optimizer)
        if logs is not None:
            logs["merges"] = sum(optimizer.merges.values())
            logs["largest_step"] = largest

    def on_train_end(self, logs: Any = None) -> None:
        self._optimizer().merge()

    def _optimizer(self) -> KStepAdam:
        optimizer = getattr(self.model, "optimizer", None)
        if not isinstance(optimizer, KStepAdam):
            raise ValueError(
                "KStepMerge needs a model compiled with tfctr.optimizers.KStepAdam. "
                f"Received: model '{self.model.name}' with "
                f"{type(optimizer).__name__}. Compile it so, or leave KStepMerge out."
            )
        return optimizer

    def _compare_ranks(self, optimizer: KStepAdam) -> float:
        """Raises if the ranks differ; returns the largest step on any of them."""
        variables = optimizer.replicated_variables
        mine = [[_digest(one) for one in variables], optimizer.take_largest_step()]
        ranks = engine.gather_objects(mine, "k_step_merge.ranks")
        for rank, (digests, _) in enumerate(ranks):
            if digests != ranks[0][0]:
                differing = [
                    one.path
                    for one, here, there in zip(
                        variables, ranks[0][0], digests, strict=False
                    )
                    if here != there
                ]
                raise ValueError(
                    "All ranks must hold the same weights after a merge. Received: "
                    f"rank {rank} differs from rank 0 in {differing}. Let all ranks "
                    "begin with the same model and optimizer, or load each its part of "
                    "the same checkpoint."
                )
        return float(max(largest for _, largest in ranks))


def _digest(variable: Any) -> str:
    numbers = keras.ops.convert_to_numpy(variable)
    return hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest()
