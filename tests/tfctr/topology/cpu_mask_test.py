"""Sets of CPUs: the texts of Linux and hwloc, and sets that cross."""

import pytest

from tfctr.topology import cpu_mask


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("00000000", []),
        ("5\n", [0, 2]),
        ("00000001,00000000,80000000", [31, 64]),
        ("0x1,,0x0", [64]),
        ("0xff", list(range(8))),
    ],
)
def test_masks_have_words_of_32_bits(text, cpus):
    assert list(cpu_mask.to_cpus(cpu_mask.from_hex(text))) == cpus


def test_a_mask_of_hwloc_may_have_no_end():
    mask = cpu_mask.from_hex("0xf...f,0x00000003")
    assert list(cpu_mask.to_cpus(mask & (1 << 40) - 1)) == [0, 1, *range(32, 40)]


@pytest.mark.parametrize(
    ("text", "cpus"), [("", []), ("\n", []), ("3", [3]), ("0-2,8,700-701\n", None)]
)
def test_lists_have_ranges(text, cpus):
    expected = [0, 1, 2, 8, 700, 701] if cpus is None else cpus
    assert list(cpu_mask.to_cpus(cpu_mask.from_list(text))) == expected


@pytest.mark.parametrize("text", ["x", "-1", "1-x"])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="invalid literal"):
        cpu_mask.from_list(text)


def test_the_first_cpu():
    assert [cpu_mask.first(mask) for mask in (0, 1, 0b1100)] == [-1, 0, 2]


def test_sets_that_cross_stay_out():
    nesting = cpu_mask.Nesting()
    assert nesting.add(0b1111)
    assert nesting.add(0b0011)
    assert nesting.add(0b110000)
    assert not nesting.add(0b0110)
    assert nesting.place(0b1100, 0b111111) == 0b1100
    # Crosses two inside the first.
    assert nesting.place(0b0110, 0b111111) == 0b1111
    assert nesting.place(0b11000, 0b111111) == 0b111111
