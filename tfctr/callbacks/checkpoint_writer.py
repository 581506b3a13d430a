"""`CheckpointWriter`: writes the moments of a training, and goes back to one."""

import contextlib
import pathlib
import threading
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_layers.dynamic_embedding import DynamicEmbedding, layers_of
from tfctr.checkpoint import (
    CheckpointDirectory,
    get_random_state,
    read_dense,
    set_random_state,
    write_dense,
)
from tfctr.checkpoint.dense_state import collect
from tfctr.distributed import engine
from tfctr.optimizers import KStepAdam


class CheckpointWriter:
    """Writes checkpoints of a model in the background. All ranks call its methods.

    Args:
        directory: `CheckpointDirectory`, locked by the time the first one is written.
        keep: Integer. How many checkpoints stay, the newest.
    """

    def __init__(self, directory: CheckpointDirectory, keep: int) -> None:
        self.directory = directory
        self.keep = keep
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def newest(self) -> int | None:
        """Returns the step of the newest checkpoint; `None` without any."""
        # Rank 0 knows which it is; another may see it later.
        [steps, *_] = engine.gather_objects(self.directory.steps(), "checkpoint.steps")
        return steps[-1] if steps else None

    def begin(
        self,
        model: keras.Model,
        state: Mapping[str, Any],
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Takes the moment now, between two steps, and begins to write it down.

        Args:
            model: Built and compiled Keras model.
            state: Dict for JSON, with the `step`; and, with `best`, a pair of a value
                and a step whose checkpoint stays.
            files: Contents of further files by name, which rank 0 writes.

        Raises:
            ValueError: If a rank does not see the directory.
        """
        self.finish()
        if isinstance(model.optimizer, KStepAdam):
            # What is saved is the model of all ranks, not of one.
            model.optimizer.merge()
        layers = layers_of(model)
        draft = self._make_draft(state["step"])
        for index, layer in enumerate(layers):
            layer.begin_snapshot(draft / f"layer-{index}", self.directory.path)
        whole = {
            **state,
            "layers": [layer.name for layer in layers],
            "random": engine.gather_objects(get_random_state(), "checkpoint.random"),
        }
        # Ranks have equal weights, unless their optimizer merges them now and then.
        is_own = engine.is_main() or isinstance(model.optimizer, KStepAdam)
        self._thread = threading.Thread(
            target=self._write,
            args=(draft, layers, collect(model) if is_own else None, whole, files),
        )
        self._thread.start()

    def finish(self) -> None:
        """Waits until the last checkpoint is written, and raises what went wrong."""
        self.wait()
        self.raise_error()

    def wait(self) -> None:
        """Waits until the last checkpoint is written, or is not."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def raise_error(self) -> None:
        """Raises what has gone wrong in the background."""
        if self._error is not None:
            error, self._error = self._error, None
            with contextlib.suppress(IndexError):
                error.add_note(
                    "The newest whole checkpoint is "
                    f"'{self.directory.of_step(self.directory.steps()[-1])}'."
                )
            raise error

    def restore(self, model: keras.Model, step: int) -> dict[str, Any]:
        """Sets the model to the checkpoint of a step, and returns its state.

        Raises:
            ValueError: If its state or dense weights are damaged, or it is of another
                model.
            tf.errors.DataLossError: If a table's file is damaged.
        """
        state = self.directory.read_state(step)
        path, layers = self.directory.of_step(step), layers_of(model)
        if len(layers) != len(state["layers"]):
            raise ValueError(
                f"'{path}' was saved from a model with the layers {state['layers']}. "
                f"Received: model '{model.name}' with "
                f"{[layer.name for layer in layers]}."
            )
        try:
            for index, layer in enumerate(layers):
                layer.restore_snapshot(path / f"layer-{index}")
        except tf.errors.DataLossError as error:
            error.add_note(self.directory.way_back(step))
            raise
        # After the tables, whose step counters are variables of the model too.
        read_dense(dense_paths(path, len(state["random"])), model)
        set_random_state(state["random"][engine.rank() % len(state["random"])])
        return state

    def _make_draft(self, step: int) -> pathlib.Path:
        """Makes the directory of a checkpoint to be, on rank 0, for all ranks."""
        path = self.directory.draft(step) if engine.is_main() else None
        [name, *_] = engine.gather_objects(str(path), "checkpoint.draft")
        draft = pathlib.Path(name)
        if not draft.is_dir():
            raise ValueError(
                f"All ranks must see the checkpoint directory '{self.directory.path}'. "
                f"Received: rank {engine.rank()}, which does not see '{draft}', made "
                "by rank 0. Name a directory on a file system that all hosts share."
            )
        return draft

    def _write(
        self,
        draft: pathlib.Path,
        layers: list[DynamicEmbedding],
        dense: dict[str, Any] | None,
        state: dict[str, Any],
        files: Mapping[str, bytes] | None,
    ) -> None:
        """Writes the part of this rank; rank 0 then makes the parts a checkpoint."""
        written: dict[str, Any] = {}
        try:
            written["tables"] = [layer.finish_snapshot() for layer in layers]
            if dense is not None:
                write_dense(draft / dense_name(engine.rank()), dense)
            if engine.is_main():
                for name, content in (files or {}).items():
                    (draft / name).write_bytes(content)
        # Whatever it is, the training's own thread must tell it.
        except Exception as error:
            self._error = _with_place(error, draft)
            written["error"] = f"{type(error).__name__}: {self._error}"
        try:
            parts = engine.gather_objects(written, "checkpoint.written")
            failed = [rank for rank, part in enumerate(parts) if "error" in part]
            if failed and self._error is None:
                self._error = OSError(
                    f"Rank {failed[0]} could not write its part of a checkpoint, and "
                    f"there is none of step {state['step']}. It said: "
                    f"{parts[failed[0]]['error']}"
                )
            if not failed and engine.is_main():
                tables = [part["tables"] for part in parts]
                self.directory.commit(state["step"], {**state, "tables": tables})
                self._prune(state.get("best"))
        except Exception as error:
            self._error = self._error or error

    def _prune(self, best_of_state: tuple[float, int] | None) -> None:
        # Not of now: the checkpoint of a newer best one may never be finished.
        best = best_of_state[1] if best_of_state else None
        for step in self.directory.steps()[: -self.keep]:
            if step != best:
                self.directory.remove(step)


def _with_place(error: Exception, draft: pathlib.Path) -> Exception:
    """Names the checkpoint in an error of the disk, which tells no file by itself."""
    if not isinstance(error, OSError) or error.errno is None or error.filename:
        return error
    told = OSError(
        f"A checkpoint must be written to its end. Received: {error.strerror}, in "
        f"'{draft}'. Make room there, or name another directory."
    )
    told.__cause__ = error
    return told


def dense_name(rank: int) -> str:
    """Returns the name of the file with the weights of a rank."""
    return "dense.npz" if rank == 0 else f"dense-{rank:05d}.npz"


def dense_paths(checkpoint: pathlib.Path, num_ranks: int) -> list[pathlib.Path]:
    """Returns the files to restore weights from: the own one, or else all there are."""
    paths = [checkpoint / dense_name(rank) for rank in range(num_ranks)]
    paths = [path for path in paths if path.exists()]
    own = checkpoint / dense_name(engine.rank())
    return [own] if num_ranks == engine.size() and own in paths else paths
