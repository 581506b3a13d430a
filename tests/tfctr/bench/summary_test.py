import numpy as np

from tfctr.bench.summary import median, ratio, ratio_interval


def test_median_is_the_middle_value_and_no_numpy_scalar():
    assert median([3.0, 1.0, 100.0]) == 3.0
    assert type(median([1.0, 2.0])) is float


def test_ratio_is_median_over_median():
    assert ratio([2.0, 4.0, 100.0], [1.0, 2.0, 3.0]) == 2.0


def test_interval_of_equal_values_is_a_point():
    assert ratio_interval([4.0] * 5, [2.0] * 3) == (2.0, 2.0)


def test_interval_holds_the_ratio_and_narrows_with_more_values():
    rng = np.random.default_rng(0)
    few_slow, few_fast = rng.normal(20, 2, 8), rng.normal(10, 1, 8)
    low, high = ratio_interval(few_slow, few_fast)
    assert low < ratio(few_slow, few_fast) < high
    many_slow, many_fast = rng.normal(20, 2, 400), rng.normal(10, 1, 400)
    narrow_low, narrow_high = ratio_interval(many_slow, many_fast)
    assert narrow_low < 2.0 < narrow_high
    assert narrow_high - narrow_low < (high - low) / 2


def test_interval_covers_the_true_ratio_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        low, high = ratio_interval(rng.normal(20, 2, 30), rng.normal(10, 1, 30))
        covered += low <= 2.0 <= high
    assert 80 <= covered <= 98


def test_interval_is_the_same_in_every_run():
    samples = ([1.0, 2.0, 4.0], [3.0, 5.0, 6.0])
    assert ratio_interval(*samples) == ratio_interval(*samples)


def test_wider_level_gives_a_wider_interval():
    slow, fast = np.arange(10.0, 20.0), np.arange(5.0, 10.0)
    low, high = ratio_interval(slow, fast, level=0.5)
    wide_low, wide_high = ratio_interval(slow, fast, level=0.99)
    assert wide_low < low <= ratio(slow, fast) <= high < wide_high
