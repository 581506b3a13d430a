"""Sizes as people write them."""

import re

import pytest

from keras_layers.storage.byte_size import format_bytes, parse_bytes


@pytest.mark.parametrize(
    "size, expected",
    [
        (1, 1),
        (4_000_000_000, 4_000_000_000),
        ("123", 123),
        ("7B", 7),
        ("2KB", 2_000),
        ("2KiB", 2_048),
        ("1.5MB", 1_500_000),
        ("512 MiB", 512 * 1024**2),
        ("4GB", 4_000_000_000),
        (" 4 gb ", 4_000_000_000),
        ("1GiB", 1024**3),
        ("2TB", 2 * 10**12),
        ("2tib", 2 * 1024**4),
    ],
)
def test_sizes_are_read(size, expected):
    assert parse_bytes("ram", size) == expected


@pytest.mark.parametrize(
    "size", [0, -1, 1.5, True, None, [], "", "GB", "0GB", "-4GB", "4 potatoes", "4GBs"]
)
def test_what_is_no_size_is_refused(size):
    message = (
        "`ram` must be a positive number of bytes, such as 4000000000, '4GB' or "
        f"'512MiB'. Received: ram={size!r}."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_bytes("ram", size)


@pytest.mark.parametrize(
    "size, expected",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 KB"),
        (1_550_000, "1.6 MB"),
        (4_000_000_000, "4.0 GB"),
        (12_345 * 10**12, "12345.0 TB"),
    ],
)
def test_sizes_are_written_in_the_largest_unit(size, expected):
    assert format_bytes(size) == expected


@pytest.mark.parametrize("size", [7, 3_000, 5_000_000, 6 * 10**9, 7 * 10**12])
def test_what_is_written_can_be_read(size):
    assert parse_bytes("ram", format_bytes(size)) == size
