"""`BlockedClickLog`: batches of examples that lie in files, block by block."""

import abc
import collections
import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tfctr.data.bad_lines import BadLine, BadLines
from tfctr.data.click_log import ClickLog, check_split
from tfctr.data.columns import Bag, Examples, concatenate
from tfctr.data.epoch_order import epoch_order
from tfctr.data.indexed_click_log import check_position, check_seed
from tfctr.data.number_checks import is_integer
from tfctr.data.parts import Part, cut, draw
from tfctr.data.position import START, Position
from tfctr.data.split import RandomSplit, TestSplit, split_share
from tfctr.declaration import FeatureDeclaration

if TYPE_CHECKING:
    import tensorflow as tf

BlockT = TypeVar("BlockT", bound=Sized)

SHUFFLE_ROWS = 262_144
# Examples that go to TensorFlow at once. Many, since each time costs a call of Python.
_PIECE_ROWS = 32_768
# Windows that are read while one is delivered.
_READ_AHEAD = 2


class BlockedClickLog(ClickLog, Generic[BlockT]):
    """A click log whose examples are read block by block, and shuffled in windows.

    An epoch visits the blocks in an order of its own, takes as many of them together as
    hold `shuffle_rows` examples, and delivers the examples of such a window in an order
    of its own: memory holds some windows, however large the log is. A log that fits
    one window is shuffled as a whole. To go on at some batch, only the window that the
    batch is in is read. Without a seed, windows are single blocks, in order.

    Subclasses find the blocks and read them; the length of a block is the number of
    its examples. What `_scan` needs must be there before this is called.

    Args:
        declared: `FeatureDeclaration`s.
        path: String or path. A file, or a directory of files.
        test: Float, string or path, or `RandomSplit`.
        on_bad_line: String. "raise" or "skip".
        shuffle_rows: Integer.
    """

    def __init__(
        self,
        declared: Sequence[FeatureDeclaration],
        path: str | os.PathLike[str],
        test: TestSplit,
        on_bad_line: str,
        shuffle_rows: int,
    ) -> None:
        self._declared = tuple(declared)
        self.features = tuple(feature.feature for feature in self._declared)
        self._bad_lines = BadLines(on_bad_line)
        self._shuffle_rows = _checked_rows(shuffle_rows)
        _, test_path = split_share(test)
        train = self._scan(path)
        tests = [] if test_path is None else self._scan(test_path)
        self._bad_lines.report()
        self._blocks = [*train, *tests]
        self._parts = _split(train, tests, test)

    @property
    def bad_lines(self) -> int:
        """Number of lines, rows or records left out."""
        return self._bad_lines.count

    @property
    def first_bad_line(self) -> BadLine | None:
        """The first of them, if any."""
        return self._bad_lines.first

    @abc.abstractmethod
    def _scan(self, path: str | os.PathLike[str]) -> list[BlockT]:
        """Finds the blocks of all files, in order, and notes the bad lines.

        Raises:
            ValueError: If there is not one example.
        """

    @abc.abstractmethod
    def _read_block(self, block: int) -> Examples:
        """Reads a block. Called from several threads at once."""

    def _read_parts(
        self, parts: Sequence[Part], wanted: npt.NDArray[np.int64] | slice
    ) -> Examples:
        """Reads parts of blocks, and of all their examples those that are wanted.

        Args:
            parts: `Part`s, whose examples are numbered one part after another.
            wanted: int64 array in any order, or slice. Numbers of examples.
        """
        examples = concatenate(
            [self._read_block(part.block).pick(part.rows()) for part in parts]
        )
        return examples.pick(wanted)

    def num_examples(self, split: str) -> int:
        check_split(split)
        return sum(map(len, self._parts[split]))

    def vocabulary(self, feature_name: str) -> npt.NDArray[Any]:
        if self.feature(feature_name).is_dense:
            raise ValueError(
                "A vocabulary belongs to a feature of ids. Received: "
                f"feature_name={feature_name!r}, a dense feature. Feed dense numbers "
                "to the model as they are."
            )
        known: set[Any] = set()
        for block in range(len(self._blocks)):
            column = self._read_block(block).inputs[feature_name]
            values = column.values if isinstance(column, Bag) else column
            known.update(np.unique(values).tolist())
        if self.feature(feature_name).dtype == "string":
            return np.array(sorted(value.decode() for value in known), np.str_)
        return np.array(sorted(known), np.int64)

    def batches(
        self,
        split: str,
        batch_size: int,
        seed: int | None = None,
        position: Position = START,
        epochs: int = 1,
        drop_remainder: bool = False,
    ) -> "tf.data.Dataset":
        import tensorflow as tf

        steps = self.steps_per_epoch(split, batch_size, drop_remainder)
        check_seed(seed)
        check_position(position, epochs, steps)
        # Narrow integers of NumPy overflow.
        batch_size, epochs = int(batch_size), int(epochs)
        num_examples = self.num_examples(split)
        is_static = drop_remainder or num_examples % batch_size == 0

        def pieces() -> Iterator[tuple[Any, ...]]:
            first_row = position.batch * batch_size
            for epoch in range(position.epoch, epochs):
                windows = _windows(
                    self._parts[split], self._shuffle_rows, seed, epoch, split
                )
                stop = min(num_examples, steps * batch_size)
                examples = self._deliver(windows, first_row, stop)
                for piece in _whole_batches(examples, batch_size):
                    yield tuple(piece.arrays())
                first_row = 0

        def batches_of(*arrays: Any) -> Any:
            inputs, labels = self._batch(arrays)
            num_rows = tf.shape(labels, tf.int64)[0]

            def cut(step: Any) -> Any:
                rows = slice(step * batch_size, (step + 1) * batch_size)
                batch = tf.nest.map_structure(lambda part: part[rows], (inputs, labels))
                if is_static:
                    for part in tf.nest.flatten(batch):
                        if isinstance(part, tf.Tensor):
                            part.set_shape([batch_size, *part.shape[1:]])
                return batch

            return tf.data.Dataset.range(-(-num_rows // batch_size)).map(cut)

        num_batches = (epochs - position.epoch) * steps - position.batch
        return (
            tf.data.Dataset.from_generator(
                pieces, output_signature=tuple(self._signature())
            )
            .flat_map(batches_of)
            .apply(tf.data.experimental.assert_cardinality(num_batches))
            .prefetch(tf.data.AUTOTUNE)
        )

    def _signature(self) -> Iterator["tf.TensorSpec"]:
        import tensorflow as tf

        for feature in self.features:
            yield tf.TensorSpec(
                [None] if feature.is_bag else [None, *feature.shape], feature.dtype
            )
            if feature.is_bag:
                yield tf.TensorSpec([None], tf.int64)
        yield tf.TensorSpec([None], tf.float32)

    def _batch(self, arrays: Sequence[Any]) -> tuple[dict[str, Any], Any]:
        """Puts the tensors of `Examples.arrays` together again."""
        import tensorflow as tf

        rest = iter(arrays)
        inputs = {}
        for feature in self.features:
            inputs[feature.name] = next(rest)
            if feature.is_bag:
                inputs[feature.name] = tf.RaggedTensor.from_row_splits(
                    inputs[feature.name], next(rest), validate=False
                )
        return inputs, next(rest)

    def _deliver(
        self, windows: Iterable["Window"], first_row: int, stop: int
    ) -> Iterator[Examples]:
        """Yields the examples of an epoch from `first_row` to `stop`."""
        needed = []
        start = 0
        for window in windows:
            end = start + window.num_examples
            if end > first_row and start < stop:
                needed.append((window, max(first_row - start, 0), stop - start))
            start = end
        reads = [
            lambda window=window, rows=slice(begin, end): self._read(window, rows)
            for window, begin, end in needed
        ]
        yield from _ahead(reads)

    def _read(self, window: "Window", rows: slice) -> Examples:
        order = window.order()
        return self._read_parts(window.parts, rows if order is None else order[rows])


@dataclasses.dataclass(frozen=True)
class Window:
    """Parts of an epoch whose examples are shuffled together.

    Args:
        parts: `Part`s, in the order of the epoch.
        number: Integer. Of the window in the epoch.
        seed: Integer. `None` leaves the order as it is.
        epoch: Integer.
        split: String.
    """

    parts: tuple[Part, ...]
    number: int
    seed: int | None
    epoch: int
    split: str

    @property
    def num_examples(self) -> int:
        return sum(map(len, self.parts))

    def order(self) -> npt.NDArray[np.int64] | None:
        if self.seed is None:
            return None
        name = f"{self.split} window {self.number}"
        return epoch_order(self.num_examples, self.seed, self.epoch, name)


def _checked_rows(shuffle_rows: int) -> int:
    if not is_integer(shuffle_rows) or shuffle_rows < 1:
        raise ValueError(
            "`shuffle_rows` must be a positive integer. Received: "
            f"shuffle_rows={shuffle_rows!r}. A usual value is {SHUFFLE_ROWS}."
        )
    return shuffle_rows


def _split(
    train: Sequence[Sized], tests: Sequence[Sized], split: TestSplit
) -> dict[str, list[Part]]:
    """Returns which parts of the blocks belong to which split.

    Args:
        train: The first blocks.
        tests: The blocks behind them, all of the test split.
        split: What the reader was told of its test split.
    """
    counts = [len(block) for block in [*train, *tests]]
    share, _ = split_share(split)
    if isinstance(split, RandomSplit):
        return {
            "train": draw(counts, share, is_test=False),
            "test": draw(counts, share, is_test=True),
        }
    total = sum(counts)
    num_train = sum(map(len, train)) if tests else total - int(total * share)
    return {
        "train": cut(counts, 0, num_train),
        "test": cut(counts, num_train, total),
    }


def _windows(
    parts: Sequence[Part], shuffle_rows: int, seed: int | None, epoch: int, split: str
) -> Iterator[Window]:
    """Yields the windows of an epoch: a pure function of the arguments."""
    order = epoch_order(len(parts), seed, epoch, f"{split} blocks")
    together: list[Part] = []
    rows = number = 0
    for index, place in enumerate(order):
        together.append(parts[place])
        # What is read is in memory, also where chance leaves much of it out.
        rows += parts[place].stop - parts[place].start
        if seed is None or rows >= shuffle_rows or index + 1 == len(order):
            yield Window(tuple(together), number, seed, epoch, split)
            together, rows, number = [], 0, number + 1


def _whole_batches(examples: Iterable[Examples], batch_size: int) -> Iterator[Examples]:
    """Yields the same examples in pieces of whole batches; the last may be short."""
    piece_rows = max(_PIECE_ROWS // batch_size, 1) * batch_size
    rest: list[Examples] = []  # Less than a batch.
    for some in examples:
        # Only one batch is of both: to join all would copy all.
        missing = min(batch_size - sum(map(len, rest)), len(some)) if rest else 0
        if missing:
            rest.append(some[:missing])
            if sum(map(len, rest)) < batch_size:
                continue
            yield concatenate(rest)
            rest = []
        num_whole = missing + (len(some) - missing) // batch_size * batch_size
        for start in range(missing, num_whole, piece_rows):
            yield some[start : min(start + piece_rows, num_whole)]
        if num_whole < len(some):
            rest.append(some[num_whole:])
    if rest:
        yield concatenate(rest)


def _ahead(reads: Sequence[Callable[[], Examples]]) -> Iterator[Examples]:
    """Calls the functions, in threads, a few before their results are asked for."""
    pool = concurrent.futures.ThreadPoolExecutor(_READ_AHEAD, "tfctr-read")
    running: collections.deque[concurrent.futures.Future[Examples]]
    running = collections.deque()
    try:
        for read in reads:
            running.append(pool.submit(read))
            if len(running) > _READ_AHEAD:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:  # Also where nobody asks for the rest.
        pool.shutdown(wait=False, cancel_futures=True)
