"""`Position`: counting and storing."""

import json

import pytest

from tfctr.data import Position


def test_a_run_starts_at_the_first_batch_of_epoch_0():
    assert Position() == Position(epoch=0, batch=0)


@pytest.mark.parametrize(
    ("num_batches", "expected"),
    [
        (0, Position(1, 2)),
        (2, Position(1, 4)),
        (3, Position(2, 0)),
        (14, Position(4, 1)),
    ],
)
def test_advancing_crosses_epochs(num_batches, expected):
    assert Position(1, 2).advanced(num_batches, steps_per_epoch=5) == expected


def test_position_survives_json():
    position = Position(3, 14)
    assert Position.from_dict(json.loads(json.dumps(position.to_dict()))) == position


@pytest.mark.parametrize("count", [-1, 1.0, True, "1"])
def test_counts_must_be_non_negative_integers(count):
    with pytest.raises(ValueError, match=f"Received: epoch={count!r}. The start"):
        Position(epoch=count)
    with pytest.raises(ValueError, match=f"Received: batch={count!r}. The start"):
        Position(batch=count)


@pytest.mark.parametrize(("num_batches", "steps"), [(-1, 5), (1, 0)])
def test_advancing_goes_forward_only(num_batches, steps):
    with pytest.raises(
        ValueError,
        match=f"num_batches={num_batches}, steps_per_epoch={steps}. To go back",
    ):
        Position().advanced(num_batches, steps)


@pytest.mark.parametrize("state", [{}, {"epoch": 1}, {"epoch": 1, "batch": 2, "x": 3}])
def test_stored_position_must_have_its_two_keys(state):
    with pytest.raises(ValueError, match="Received: {.*}. Pass what `Position.to_dict"):
        Position.from_dict(state)
