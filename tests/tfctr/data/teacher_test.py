"""`Teacher` against its formula, pair by pair."""

import numpy as np

from tfctr.data.hashing import hash64, to_unit
from tfctr.data.synthetic import bounded_zipf
from tfctr.data.teacher import CLICK_RATE, LOGIT_SCALE, Teacher


def weight(*parts):
    return 2 * to_unit(hash64(*parts))[0] - 1


def plain_parts(teacher, ranks, dense):
    """Returns the unscaled linear and pairwise part of one example, by loops."""
    shrink = [1 / (1 + rank / 10) for rank in ranks]
    vectors = [
        np.array(
            [weight("vector", teacher.seed, f, d, rank) for d in range(teacher.dim)]
        )
        * shrink[f]
        for f, rank in enumerate(ranks)
    ]
    linear = sum(
        weight("linear", teacher.seed, f, rank) * shrink[f]
        for f, rank in enumerate(ranks)
    ) + sum(
        weight("dense weight", teacher.seed, column) * value
        for column, value in enumerate(dense)
    )
    pairs = sum(vectors[i] @ vectors[j] for i in range(len(ranks)) for j in range(i))
    return linear, pairs


def sample(fields, num_dense, num_examples=2000):
    chance = np.random.default_rng(0).random((num_examples, fields + num_dense))
    dense = chance[:, fields:].astype(np.float32)
    return bounded_zipf(chance[:, :fields], 1000), dense


def logits(probabilities):
    return np.log(probabilities / (1 - probabilities))


def test_logit_is_an_affine_function_of_both_parts():
    ranks, dense = sample(fields=3, num_dense=2)
    teacher = Teacher(dim=4, seed=7, ranks=ranks, dense=dense)
    parts = np.array(
        [
            plain_parts(teacher, [int(r) for r in ranks[i]], dense[i].astype(float))
            for i in range(200)
        ]
    )
    found = logits(teacher.probabilities(ranks[:200], dense[:200]))
    design = np.column_stack([np.ones(200), parts])
    coefficients, *_ = np.linalg.lstsq(design, found, rcond=None)
    np.testing.assert_allclose(design @ coefficients, found, rtol=0, atol=1e-9)
    assert coefficients[1] > 0 and coefficients[2] > 0


def test_sample_has_the_click_rate_and_the_logit_scale():
    ranks, dense = sample(fields=5, num_dense=1)
    probabilities = Teacher(4, 1, ranks, dense).probabilities(ranks, dense)
    np.testing.assert_allclose(probabilities.mean(), CLICK_RATE, atol=1e-12)
    np.testing.assert_allclose(logits(probabilities).std(), LOGIT_SCALE, rtol=1e-9)


def test_probability_does_not_depend_on_the_rest_of_the_batch():
    ranks, dense = sample(fields=5, num_dense=1)
    teacher = Teacher(4, 1, ranks, dense)
    alone = [
        teacher.probabilities(ranks[i : i + 1], dense[i : i + 1]) for i in range(9)
    ]
    together = teacher.probabilities(ranks[:9], dense[:9])
    np.testing.assert_array_equal(np.concatenate(alone), together)


def test_a_single_field_has_no_pairs():
    ranks, dense = sample(fields=1, num_dense=0)
    teacher = Teacher(4, 1, ranks, dense)
    np.testing.assert_allclose(
        logits(teacher.probabilities(ranks, dense)).std(), LOGIT_SCALE, rtol=1e-9
    )


def test_equal_examples_have_the_click_rate():
    ranks, dense = np.zeros((10, 2), np.int64), np.zeros((10, 0), np.float32)
    probabilities = Teacher(4, 1, ranks, dense).probabilities(ranks, dense)
    np.testing.assert_allclose(probabilities, CLICK_RATE, atol=1e-12)
