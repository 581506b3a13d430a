"""What a store says of bad configurations, bad inputs and misuse."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import MemoryBudget

FEATURE = tf.constant([0])
IDS = tf.constant([1, 2, 3, 4], tf.int64)
ONES = tf.ones((4, 2))


def refuses(error, message):
    """Expects `error` with `message` to the letter."""
    return pytest.raises(error, match=re.escape(message))


def invalid(message):
    return refuses(tf.errors.InvalidArgumentError, message)


# Configurations.


@pytest.mark.parametrize(
    "option, value, message",
    [
        ("dim", 0, "`dim` must be a positive integer. Received: dim=0."),
        (
            "default_row",
            (0.0, 0.0, 0.0),
            "`default_row` must have dim=2 values. Received: 3 values.",
        ),
        (
            "feature_seeds",
            (),
            "`feature_seeds` must have one seed per feature. Received: none.",
        ),
        (
            "eviction_policy",
            "random",
            "`eviction_policy` must be one of 'none', 'clock', 'lru', 'lfu'. "
            "Received: eviction_policy='random'.",
        ),
        (
            "admission",
            "lfu",
            "`admission` must be one of 'none', 'count', 'bloom', 'probability'. "
            "Received: admission='lfu'.",
        ),
        (
            "admission_min_count",
            0,
            "`admission_min_count` must lie in [1, 2147483647]. "
            "Received: admission_min_count=0.",
        ),
        (
            "admission_expected_keys",
            0,
            "`admission_expected_keys` must be positive. "
            "Received: admission_expected_keys=0.",
        ),
        (
            "admission_false_positive_rate",
            1.0,
            "`admission_false_positive_rate` must lie in (0, 1). "
            "Received: admission_false_positive_rate=1.0.",
        ),
        (
            "admission_probability",
            1.5,
            "`admission_probability` must lie in (0, 1]. "
            "Received: admission_probability=1.5.",
        ),
        (
            "expiry_unused_steps",
            0,
            "`expiry_unused_steps` must be positive, or None. "
            "Received: expiry_unused_steps=0.",
        ),
        (
            "num_threads",
            -1,
            "`num_threads` must not be negative. Received: num_threads=-1.",
        ),
    ],
)
def test_a_config_is_checked(make_store, option, value, message):
    with refuses(ValueError, message):
        make_store(**{option: value})


def test_a_budget_is_not_negative():
    message = "`limit_bytes` must not be negative. Received: limit_bytes=-5."
    with refuses(ValueError, message):
        MemoryBudget(-5)


def test_the_op_checks_the_default_row_too(raw_store):
    with invalid("`default_row` must have `dim` values. Received: 3 values, dim=2."):
        raw_store(MemoryBudget().handle, default_row=[0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    "attributes, received",
    [
        (
            {"admission": "bloom", "admission_min_count": 2**16},
            "min_count=65536, false_positive_rate=0.01, probability=1",
        ),
        (
            {"admission_false_positive_rate": 0.0},
            "min_count=1, false_positive_rate=0, probability=1",
        ),
        (
            {"admission_probability": 0.0},
            "min_count=1, false_positive_rate=0.01, probability=0",
        ),
    ],
)
def test_the_op_checks_admission_too(raw_store, attributes, received):
    with invalid(f"a probability in (0, 1]. Received: {received}."):
        raw_store(MemoryBudget().handle, **attributes)


def test_without_a_rule_nothing_expires(make_store):
    message = (
        "Table 'users' was made without a rule of expiry. Say which rows shall leave: "
        "TableConfig(expiry=Expiry(unused_steps=...))."
    )
    with refuses(tf.errors.FailedPreconditionError, message):
        make_store().expire()


@pytest.mark.slow
def test_the_number_of_features_is_bounded(raw_store):
    message = "at most 16777216 features. Received: 16777217 feature_seeds."
    with invalid(f"A store holds {message}"):
        raw_store(MemoryBudget().handle, feature_seeds=[0] * (2**24 + 1))


# Keys.


@pytest.fixture(params=["lookup", "read", "write", "remove"])
def use_keys(request, make_store):
    """Each method that takes keys, as a function of ids and features."""
    store = make_store()

    def use(ids, features):
        more = [tf.ones((tf.size(ids), 2))] if request.param == "write" else []
        return getattr(store, request.param)(ids, features, *more)

    return use


@pytest.mark.parametrize(
    "ids, features, shapes",
    [
        (tf.reshape(IDS, (2, 2)), FEATURE, "ids.shape=[2,2], features.shape=[1]"),
        (IDS[0], FEATURE, "ids.shape=[], features.shape=[1]"),
        (IDS, FEATURE[0], "ids.shape=[4], features.shape=[]"),
        (IDS, FEATURE[None], "ids.shape=[4], features.shape=[1,1]"),
    ],
)
def test_ids_and_features_are_vectors(use_keys, ids, features, shapes):
    message = (
        f"`ids` and `features` must have rank 1. Received: {shapes}. "
        "Flatten the ids first: tf.reshape(ids, [-1])."
    )
    with invalid(message):
        use_keys(ids, features)
    # Where no rank is known while tracing, the kernel still looks.
    anything = [tf.TensorSpec(None, tf.int64), tf.TensorSpec(None, tf.int32)]
    with invalid(message):
        tf.function(use_keys, input_signature=anything)(ids, features)


@pytest.mark.parametrize("num_features", [0, 3, 8])
def test_the_number_of_features_divides_that_of_ids(use_keys, num_features):
    message = (
        "The number of ids must be a multiple of the number of features. "
        f"Received: 4 ids, {num_features} features."
    )
    with invalid(message):
        use_keys(IDS, tf.zeros([num_features], tf.int32))


@pytest.mark.parametrize("feature", [-2, 2, 2**31 - 1])
def test_features_have_seeds(use_keys, feature):
    message = (
        "`features` must lie in [0, 2), or be -1 for an absent key. "
        f"Received: {feature}."
    )
    with invalid(message):
        use_keys(IDS, tf.constant([0, feature]))


def test_an_import_checks_its_features(make_store):
    store = make_store()
    rows = exported(make_store)._replace(features=tf.constant([0, 1, 2, 0]))
    with invalid("`features` must lie in [0, 2), or be -1"):
        store.import_rows(rows, step=0)


# Other inputs.


def exported(make_store):
    store = make_store()
    store.write(IDS, FEATURE, ONES)
    return store.export_rows()


@pytest.mark.parametrize("shape", [(3, 2), (4, 3), (8,), (4, 2, 1)])
def test_written_weights_are_one_row_per_id(make_store, shape):
    received = ",".join(map(str, shape))
    message = f"`weights` must have shape [4,2]. Received: weights.shape=[{received}]."
    with invalid(message):
        make_store().write(IDS, FEATURE, tf.ones(shape))


@pytest.mark.parametrize(
    "column, shape, expected",
    [
        ("ids", (2, 2), "[4]"),
        ("features", (3,), "[4]"),
        ("values", (4, 3), "[4,2]"),
        ("last_steps", (5,), "[4]"),
        ("counts", (4, 1), "[4]"),
    ],
)
def test_imported_columns_fit_together(make_store, column, shape, expected):
    rows = exported(make_store)
    wrong = tf.zeros(shape, getattr(rows, column).dtype)
    name = "rows" if column == "values" else column
    received = ",".join(map(str, shape))
    message = f"must have shape {expected}. Received: {name}.shape=[{received}]."
    with invalid(f"`{name}` {message}"):
        make_store().import_rows(rows._replace(**{column: wrong}), step=0)


@pytest.mark.parametrize("shape", [(3, 2), (4, 1), (8,)])
def test_gradients_are_one_row_per_key(make_store, shape):
    store = make_store()
    _, ticket = store.lookup(IDS, tf.constant([0, -1]))  # Absent keys count.
    received = ",".join(map(str, shape))
    message = (
        "`gradients` must have one row per looked up key: shape [4,2]. "
        f"Received: gradients.shape=[{received}]."
    )
    with invalid(message):
        store.update(ticket, tf.ones(shape), 0.5)


def test_scalars_are_scalars(make_store):
    # Eager calls have no shape function, and the kernel used to abort the process.
    store = make_store()
    rows, ticket = store.lookup(IDS, FEATURE)
    message = "`{0}` must be a scalar. Received: {0}.shape=[{1}]."
    with invalid(message.format("expected_step", 2)):
        store.lookup(IDS, FEATURE, expected_step=tf.constant([0, 0]))
    with invalid(message.format("expected_step", 0)):
        store.read(IDS, FEATURE, expected_step=tf.zeros([0]))
    with invalid(message.format("learning_rate", 2)):
        store.update(ticket, rows, tf.constant([0.5, 0.5]))
    with invalid(message.format("ticket", 2)):
        store.update(tf.stack([ticket, ticket]), rows, 0.5)
    with invalid(message.format("step", "1,1")):
        store.import_rows(store.export_rows(), step=[[1]])
    store.update(ticket, rows, 0.5)  # Nothing of it used the ticket up.


# Steps and tickets.


@pytest.mark.parametrize("method", ["lookup", "read"])
@pytest.mark.parametrize("expected_step", [0, 2])
def test_rows_of_another_moment_than_the_weights_are_refused(
    make_store, method, expected_step
):
    store = make_store(table="ads")
    _, ticket = store.lookup(IDS, FEATURE)
    store.update(ticket, ONES, 0.5)
    message = (
        "The rows of table 'ads' are those after 1 updates, but the layer's weights "
        f"are those after {expected_step}. The weights were set without the rows, as "
        "by `set_weights` or EarlyStopping(restore_best_weights=True): neither can "
        "carry a table. (Or another thread trains the layer: read between its steps.) "
        "Go back to a moment with `model.save_weights` and "
        "`load_weights`, which carry both."
    )
    with refuses(tf.errors.FailedPreconditionError, message):
        getattr(store, method)(IDS, FEATURE, expected_step=expected_step)


def test_a_ticket_reports_once(make_store):
    store = make_store(table="ads")
    _, ticket = store.lookup(IDS, FEATURE)
    store.update(ticket, ONES, 0.5)
    message = (
        "Table 'ads' was asked twice for the gradient of one lookup, and each would "
        "move its rows. Take one gradient per call of the layer: add the losses up "
        "first, and do not use a persistent tape twice."
    )
    with refuses(tf.errors.FailedPreconditionError, message):
        store.update(ticket, ONES, 0.5)
    assert store.read(IDS, FEATURE).numpy().tolist() == [[0.5, 0.5]] * 4


def test_a_ticket_belongs_to_one_store(make_store):
    # Its handles are places in that store: this used to write anywhere.
    store, other = make_store(table="ads"), make_store(table="users")
    _, ticket = other.lookup(IDS, FEATURE)
    message = (
        "`ticket` must come from a lookup in the same store, table 'ads'. "
        "Received: a ticket of table 'users'."
    )
    with invalid(message):
        store.update(ticket, ONES, 0.5)
    assert store.stats()["rows"] == 0
    assert int(other.update(ticket, ONES, 0.5)) == 1


def test_a_ticket_is_no_other_variant(make_store):
    variant = tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant([], tf.int32),
        max_num_elements=1,
        element_dtype=tf.float32,
    )
    message = (
        "`ticket` must come from EmbeddingStoreLookup. "
        "Received: a variant of type tensorflow::TensorList."
    )
    with invalid(message):
        make_store().update(variant, ONES, 0.5)


@pytest.mark.parametrize("rate", ["nan", "inf", "-inf", "-0.5", "2e+06"])
def test_a_learning_rate_out_of_range_moves_nothing(make_store, rate):
    # It used to make every row of the batch NaN.
    store = make_store(table="ads")
    _, ticket = store.lookup(IDS, FEATURE)
    message = (
        "The learning rate of table 'ads' must lie in [0, 1e+06]. "
        f"Received: learning_rate={rate}. Check the schedule."
    )
    with invalid(message):
        store.update(ticket, ONES, float(rate))
    store.update(ticket, ONES, 0.5)
    assert store.read(IDS, FEATURE).numpy().tolist() == [[0.5, 0.5]] * 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1e12])
@pytest.mark.parametrize("place", [0, 70_001])
def test_a_bad_gradient_names_the_table_and_the_update(make_store, bad, place):
    store = make_store(table="ads")
    _, ticket = store.lookup(IDS, FEATURE)
    store.update(ticket, ONES, 0.5)
    gradients = np.zeros(100_000, "float32")
    gradients[place] = bad
    _, ticket = store.lookup(tf.range(50_000, dtype=tf.int64), FEATURE)
    message = (
        "Table 'ads' received a gradient that is NaN, infinite or larger than 1e12, in "
        "update 2. No row was changed. Lower the learning rate, check the inputs and "
        "the loss, or skip such steps with TableConfig(bad_gradients='skip')."
    )
    with invalid(message):
        store.update(ticket, gradients.reshape(-1, 2), 0.5)
    assert store.read(IDS, FEATURE).numpy().tolist() == [[0.5, 0.5]] * 4
    assert store.stats()["known_rows"] == 4
