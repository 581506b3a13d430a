"""Shape functions, one line per case, through `tf.function`."""

import re

import pytest
import tensorflow as tf

from tfctr_ops import MemoryBudget, library

DTYPES = {
    "ids": tf.int64,
    "features": tf.int32,
    "expected_step": tf.int64,
    "ticket": tf.variant,
    "gradients": tf.float32,
    "learning_rate": tf.float32,
    "is_good": tf.bool,
    "weights": tf.float32,
    "rows": tf.float32,
    "last_steps": tf.int64,
    "counts": tf.int64,
    "often": tf.int32,
    "step": tf.int64,
    "directory": tf.string,
    "directories": tf.string,
    "metadata": tf.string,
    "scratch": tf.string,
    "seeds": tf.int64,
    "prefix": tf.string,
    "prefixes": tf.string,
    "bytes": tf.uint8,
}
# The inputs of each op after the store, and its attributes.
OPS = {
    "lookup": (["ids", "features", "expected_step", "often"], {"dim": 3}),
    "read": (["ids", "features", "expected_step"], {"dim": 3}),
    "update": (["ticket", "gradients", "learning_rate", "is_good"], {}),
    "prefetch": (["ids", "features"], {}),
    "write": (["ids", "features", "weights"], {}),
    "remove": (["ids", "features"], {}),
    "expire": ([], {}),
    "export": ([], {"num_floats": 9}),
    "export_admission": ([], {}),
    "import_admission": (["bytes", "features"], {}),
    "read_rows": (["ids", "features"], {"num_floats": 9}),
    "put_rows": (["ids", "features", "rows", "last_steps", "counts", "step"], {}),
    "import": (["ids", "features", "rows", "last_steps", "counts", "step"], {}),
    "stats": ([], {}),
    "begin_save": (["directory", "scratch"], {}),
    "finish_save": (["metadata"], {}),
    "close": ([], {}),
    "restore": (["directories", "features", "seeds"], {"num_owners": 2}),
    "write_row_files": (["prefix"], {"values": "int32", "append": True}),
    "read_row_files": (["prefixes"], {"values": "int32"}),
}
UNKNOWN = None

GOOD = [
    ("lookup", [[5], [1], [], [5]], [[5, 3], []]),
    ("lookup", [[None], [None], [], [0]], [[None, 3], []]),
    ("lookup", [UNKNOWN] * 4, [[None, 3], []]),
    ("read", [[5], [1], []], [[5, 3]]),
    ("read", [[None], [None], []], [[None, 3]]),
    ("read", [UNKNOWN, UNKNOWN, UNKNOWN], [[None, 3]]),
    ("prefetch", [[5], [1]], []),
    ("prefetch", [UNKNOWN, UNKNOWN], []),
    ("update", [[], [5, 3], [], []], [[]]),
    ("update", [[], [None, 3], [], []], [[]]),
    ("update", [UNKNOWN] * 4, [[]]),
    ("write", [[5], [1], [5, 3]], []),
    ("write", [UNKNOWN, UNKNOWN, UNKNOWN], []),
    ("remove", [[5], [1]], [[]]),
    ("remove", [UNKNOWN, UNKNOWN], [[]]),
    ("export", [], [[None], [None], [None, 9], [None], [None]]),
    ("import", [[5], [5], [5, 9], [5], [5], []], []),
    ("import", [UNKNOWN] * 6, []),
    ("read_rows", [[5], [1]], [[5, 9], [5], [5], [5]]),
    ("read_rows", [UNKNOWN, UNKNOWN], [[None, 9], [None], [None], [None]]),
    ("put_rows", [[5], [5], [5, 9], [5], [5], []], []),
    ("expire", [], [[]]),
    ("export_admission", [], [[None]]),
    ("import_admission", [[5], [3]], []),
    ("import_admission", [UNKNOWN, UNKNOWN], []),
    ("stats", [], [[22]]),
    ("begin_save", [[], []], []),
    ("finish_save", [[]], [[4]]),
    ("restore", [[2], [3], [3]], []),
    ("close", [], []),
    ("write_row_files", [[]], []),
    ("read_row_files", [[2]], []),
    ("read_row_files", [UNKNOWN], []),
]
BAD = [
    ("lookup", [[5, 1], [1], [], [5]], "must be rank 1 but is rank 2"),
    ("lookup", [[], [1], [], [0]], "must be rank 1 but is rank 0"),
    ("lookup", [[5], [1, 1], [], [5]], "must be rank 1 but is rank 2"),
    ("lookup", [[5], [1], [1], [5]], "must be rank 0 but is rank 1"),
    ("lookup", [[5], [1], [], []], "must be rank 1 but is rank 0"),
    ("read", [[5, 1], [1], []], "must be rank 1 but is rank 2"),
    ("read", [[5], [], []], "must be rank 1 but is rank 0"),
    ("read", [[5], [1], [1]], "must be rank 0 but is rank 1"),
    ("prefetch", [[5, 1], [1]], "must be rank 1 but is rank 2"),
    ("prefetch", [[5], []], "must be rank 1 but is rank 0"),
    ("update", [[1], [5, 3], [], []], "must be rank 0 but is rank 1"),
    ("update", [[], [5], [], []], "must be rank 2 but is rank 1"),
    ("update", [[], [5, 3], [1], []], "must be rank 0 but is rank 1"),
    ("update", [[], [5, 3], [], [1]], "must be rank 0 but is rank 1"),
    ("write", [[5, 1], [1], [5, 3]], "must be rank 1 but is rank 2"),
    ("write", [[5], [], [5, 3]], "must be rank 1 but is rank 0"),
    ("write", [[5], [1], [5]], "must be rank 2 but is rank 1"),
    ("remove", [[5, 1], [1]], "must be rank 1 but is rank 2"),
    ("remove", [[5], []], "must be rank 1 but is rank 0"),
    ("read_rows", [[5, 1], [1]], "must be rank 1 but is rank 2"),
    ("put_rows", [[5], [5], [5], [5], [5], []], "must be rank 2 but is rank 1"),
    ("import_admission", [[], [3]], "must be rank 1 but is rank 0"),
    ("import_admission", [[5], []], "must be rank 1 but is rank 0"),
    ("begin_save", [[], [1]], "must be rank 0 but is rank 1"),
    ("begin_save", [[1], []], "must be rank 0 but is rank 1"),
    ("finish_save", [[1]], "must be rank 0 but is rank 1"),
    ("restore", [[], [3], [3]], "must be rank 1 but is rank 0"),
    ("restore", [[1], [], [3]], "must be rank 1 but is rank 0"),
    ("restore", [[1], [3], []], "must be rank 1 but is rank 0"),
    ("import", [[5, 1], [5], [5, 9], [5], [5], []], "must be rank 1 but is rank 2"),
    ("import", [[5], [], [5, 9], [5], [5], []], "must be rank 1 but is rank 0"),
    ("import", [[5], [5], [5], [5], [5], []], "must be rank 2 but is rank 1"),
    ("import", [[5], [5], [5, 9], [5, 1], [5], []], "must be rank 1 but is rank 2"),
    ("import", [[5], [5], [5, 9], [5], [], []], "must be rank 1 but is rank 0"),
    ("import", [[5], [5], [5, 9], [5], [5], [1]], "must be rank 0 but is rank 1"),
    ("write_row_files", [[1]], "must be rank 0 but is rank 1"),
    ("read_row_files", [[]], "must be rank 1 but is rank 0"),
]


def trace(op, shapes):
    """Returns the static shapes of the outputs, as lists."""
    inputs, attributes = OPS[op]
    specs = [
        tf.TensorSpec(shape, DTYPES[name])
        for shape, name in zip(shapes, inputs, strict=True)
    ]
    function = getattr(library.load(), f"tfctr_embedding_store_{op}")
    static = []

    # Only traced, so a handle of any kind will do.
    @tf.function(input_signature=[tf.TensorSpec([], tf.resource), *specs])
    def run(store, *tensors):
        outputs = function(store, *tensors, **attributes)
        if isinstance(outputs, tf.Operation):  # An op without outputs.
            outputs = []
        elif isinstance(outputs, tf.Tensor):
            outputs = [outputs]
        static.extend(output.shape.as_list() for output in outputs)

    run.get_concrete_function()
    return static


@pytest.mark.parametrize("op, shapes, expected", GOOD)
def test_shapes_of_outputs_are_known(op, shapes, expected):
    assert trace(op, shapes) == expected


@pytest.mark.parametrize("op, shapes, message", BAD)
def test_bad_ranks_are_refused_while_tracing(op, shapes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        trace(op, shapes)


def test_every_op_has_cases():
    # What makes stores and budgets returns a scalar, whatever comes.
    made = {"", "_eager_fallback"}
    ops = {
        name.removeprefix("tfctr_embedding_store").removesuffix("_eager_fallback")
        for name in dir(library.load())
        if name.startswith("tfctr_embedding_store")
    }
    assert {f"_{op}" for op in OPS} == ops - made
    assert {op for op, _, _ in GOOD} == set(OPS)


def test_handles_are_scalars(raw_store):
    shapes = []

    @tf.function
    def make():
        budget = library.load().tfctr_memory_budget(limit_bytes=-1)
        store = raw_store(budget)
        shapes.extend([budget.shape, store.shape])

    make()
    assert shapes == [[], []]
    assert MemoryBudget().handle.shape == []


@pytest.mark.parametrize(
    "attribute, value, message",
    [
        ("dim", 0, "Value for attr 'dim' of 0 must be at least minimum 1"),
        ("num_threads", -1, "'num_threads' of -1 must be at least minimum 0"),
        ("feature_seeds", [], "Length for attr 'feature_seeds' of 0 must be at least"),
        ("eviction_policy", "fifo", "'eviction_policy' of \"fifo\" is not in the list"),
        ("admission", "lfu", "'admission' of \"lfu\" is not in the list"),
        ("admission_min_count", 0, "'admission_min_count' of 0 must be at least"),
        ("expiry_every", -1, "'expiry_every' of -1 must be at least minimum 0"),
        ("initializer", "glorot", "'initializer' of \"glorot\" is not in the list"),
        ("optimizer", "lion", "'optimizer' of \"lion\" is not in the list"),
    ],
)
def test_attributes_are_checked(raw_store, attribute, value, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        raw_store(MemoryBudget().handle, **{attribute: value})
