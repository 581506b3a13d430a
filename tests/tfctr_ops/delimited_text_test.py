"""`parse_delimited` against plain Python, on random lines, good and bad."""

import random
import re

import numpy as np
import pytest
import tensorflow as tf

from tfctr_ops import parse_delimited, parse_delimited_to

PATTERNS = {
    "l": "[01]",
    "n": r"(-?\d{1,18})?",
    "d": r"(-?\d{1,18})?",
    "h": "[0-9a-fA-F]{0,16}",
    "-": ".*",
}


def oracle(text, kinds, delimiter):
    labels, numbers, ids, bad_lines = [], [], [], []
    begin = 0
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines):
        content = line.removesuffix("\r")
        fields = content.split(delimiter)
        wrong = [
            place
            for place, (kind, field) in enumerate(zip(kinds, fields, strict=False))
            if not re.fullmatch(PATTERNS[kind], field)
        ]
        if len(fields) != len(kinds) or wrong:
            column = wrong[0] if len(fields) == len(kinds) else -1
            end = begin + len(content)
            bad_lines.append([number, begin, end, column, len(fields)])
        else:
            pairs = list(zip(kinds, fields, strict=True))
            labels += [float(field) for kind, field in pairs if kind == "l"]
            numbers.append([float(f or "nan") for kind, f in pairs if kind == "n"])
            ids.append(
                [
                    -1 if f == "" else int(f, 16 if kind == "h" else 10)
                    for kind, f in pairs
                    if kind in "dh"
                ]
            )
        begin += len(line) + 1
    return labels, numbers, np.array(ids, np.uint64 if not ids else None), bad_lines


@pytest.mark.parametrize("ending", ["\n", ""])
def test_random_lines_are_as_python_reads_them(ending):
    chance = random.Random(1)
    kinds, delimiter = "-lndh", ","
    choices = {
        "-": ["", "x y", "\t"],
        "l": ["0", "1", "0", "1", "2", ""],
        "n": ["", "5", "-7", "1234567", "-", "1.5", "00", "1" * 19],
        "d": ["", "99", "-1", "9" * 18, "1" * 19, "a"],
        "h": ["", "ff", "01aFfA9e", "0123456789ABCDEF", "0" * 17, "g", "0123456g"],
    }
    lines = []
    for _ in range(40_000):  # Over several parts of the text.
        fields = [
            chance.choice(choices[kind][: chance.choice([2, 9])]) for kind in kinds
        ]
        fields += [""] * chance.choice([0] * 9 + [1])
        lines.append(delimiter.join(fields) + chance.choice(["", "\r"]))
    text = "\n".join(lines) + ending
    parsed = parse_delimited(text.encode(), kinds, delimiter)
    labels, numbers, ids, bad_lines = oracle(text, kinds, delimiter)
    assert 5_000 < len(labels) < 35_000
    np.testing.assert_array_equal(parsed.labels, labels)
    np.testing.assert_array_equal(parsed.numbers, np.array(numbers, np.float32))
    np.testing.assert_array_equal(parsed.ids, ids)
    np.testing.assert_array_equal(parsed.bad_lines, bad_lines)


def test_no_text_has_no_lines():
    parsed = parse_delimited(b"", "lnh", "\t")
    shapes = [parsed.labels.shape, parsed.numbers.shape, parsed.ids.shape]
    assert shapes == [(0,), (0, 1), (0, 1)]
    assert parsed.bad_lines.shape == (0, 5)


def test_only_bad_lines_leave_no_rows():
    parsed = parse_delimited(b"x\nx\n", "l", ",")
    assert len(parsed.labels) == 0
    assert parsed.bad_lines.numpy()[:, 0].tolist() == [0, 1]


def test_bytes_of_any_kind_are_bad_lines():
    text = np.random.default_rng(0).integers(0, 256, 50_000, np.uint8).tobytes()
    parsed = parse_delimited(text, "lnnh", "\t")
    lines = text.count(b"\n") + (not text.endswith(b"\n"))
    assert len(parsed.labels) + len(parsed.bad_lines) == lines


def test_shapes_are_known_in_graphs():
    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def parse(text):
        parsed = parse_delimited(text, "lnnh-", ",")
        assert parsed.labels.shape.as_list() == [None]
        assert parsed.numbers.shape.as_list() == [None, 2]
        assert parsed.ids.shape.as_list() == [None, 1]
        assert parsed.bad_lines.shape.as_list() == [None, 5]
        return parsed.ids

    assert parse(b"1,2,3,f,x\n").numpy().tolist() == [[15]]


@pytest.mark.parametrize(
    ("kinds", "delimiter", "message"),
    [
        ("lx", ",", "must have a letter for each field.*Received: 'lx'"),
        ("ll", ",", "at most one label.*Received: 'll'"),
        ("", ",", "Received: ''"),
        ("l", "ab", "must be one character. Received: 'ab'"),
    ],
)
def test_wrong_formats_are_refused(kinds, delimiter, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        parse_delimited(b"1\n", kinds, delimiter)


def test_every_byte_at_every_place_of_eight_digits_is_as_python_reads_it():
    fields = [
        "1234abCD"[:place] + chr(byte) + "1234abCD"[place + 1 :]
        for place in range(8)
        for byte in range(128)
        if chr(byte) not in "\n\r,"
    ]
    text = "\n".join(fields) + "\n"
    parsed = parse_delimited(text.encode(), "h", ",")
    _, _, ids, bad_lines = oracle(text, "h", ",")
    np.testing.assert_array_equal(parsed.ids, ids)
    np.testing.assert_array_equal(parsed.bad_lines, bad_lines)
    high = b"".join(
        b"1234\xc1bCD\n".replace(b"\xc1", bytes([b])) for b in range(128, 256)
    )
    assert len(parse_delimited(high, "h", ",").bad_lines) == 128


# Into places.


def test_lines_go_to_their_places():
    chance = np.random.default_rng(0)
    counts = [40_000, 0, 1, 20_000]  # The first one over several parts of its text.
    numbers = chance.integers(0, 2**32, sum(counts))
    ends = np.cumsum(counts)
    texts = [
        "\n".join(f"{n % 2},{n % 1000},{n:08x}" for n in numbers[end - count : end])
        for count, end in zip(counts, ends, strict=True)
    ]
    wanted = chance.permutation(sum(counts))[:50_000]
    places = np.full(sum(counts), -1)
    places[wanted] = np.arange(len(wanted))
    parsed = parse_delimited_to([t.encode() for t in texts], counts, places, "lnh", ",")
    assert parsed.is_as_told.numpy().all()
    expected = numbers[wanted]
    np.testing.assert_array_equal(parsed.labels, expected % 2)
    np.testing.assert_array_equal(parsed.numbers[:, 0], expected % 1000)
    np.testing.assert_array_equal(parsed.ids[:, 0], expected)


def test_texts_that_are_not_as_told_are_found():
    texts = [b"1,5\n", b"1,5\nx\n", b"1,5\nx\n", b"1,5\n1,6\n"]
    parsed = parse_delimited_to(texts, [1, 2, 2, 1], [3, 0, -1, 1, 2, -1], "ld", ",")
    assert parsed.is_as_told.numpy().tolist() == [True, True, False, False]
    assert parsed.ids.shape == (4, 1)
    assert parsed.ids.numpy()[[3, 0]].tolist() == [[5], [5]]


@pytest.mark.parametrize(
    ("num_lines", "places", "message"),
    [
        ([3], [0, 1], "must be the numbers of lines.*Received: num_lines\\[0\\]=3"),
        ([-1], [0, 1], "Received: num_lines\\[0\\]=-1"),
        ([2], [0, 2], "each of 2 rows to one of 2 lines. Received: places\\[1\\]=2"),
        ([2], [0, 0], "Received: places\\[1\\]=0"),
        ([1], [0, 1], "to one of 1 lines. Received: places\\[1\\]=1"),
        ([2, 0], [0, 1], "must have shape \\(k,\\).*Received: shapes \\[1\\], \\[2\\]"),
        ([2], [[0, 1]], "and `places` rank 1. Received"),
    ],
)
def test_wrong_places_are_refused(num_lines, places, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        parse_delimited_to([b"1\n0\n"], num_lines, places, "l", ",")


def test_shapes_of_placed_lines_are_known_in_graphs():
    @tf.function(input_signature=[tf.TensorSpec([2], tf.string)])
    def parse(texts):
        parsed = parse_delimited_to(texts, [1, 1], [1, 0], "lnnh-", ",")
        assert parsed.labels.shape.as_list() == [None]
        assert parsed.numbers.shape.as_list() == [None, 2]
        assert parsed.ids.shape.as_list() == [None, 1]
        assert parsed.is_as_told.shape.as_list() == [2]
        return parsed.ids

    assert parse([b"1,2,3,f,x\n", b"1,2,3,e,x"]).numpy().tolist() == [[14], [15]]
