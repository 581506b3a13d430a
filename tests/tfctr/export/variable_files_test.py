"""Variables in files: what is written is read, to the bit."""

import numpy as np
import pytest
import tensorflow as tf

from tfctr.export.variable_files import VariableFiles, digest, write_variables

VALUES = {
    "a string": np.array(b"zeros at its end\0\0", object),
    "strings": np.array([[b"a", b""], [b"\0", b"ab\0"]], object),
    "a number": np.array(7, np.int64),
    "none": np.zeros((0, 3), np.float32),
    "rows": np.array([[np.nan, -0.0], [1e-45, 3.0]], np.float32),
    "words": np.array([2**64 - 1, 0], np.uint64),
}


def test_variables_come_back_as_they_were(tmp_path):
    write_variables(tmp_path, VALUES)
    files = VariableFiles(tmp_path)
    assert files.names == sorted(VALUES)
    for name, value in VALUES.items():
        found = files.read(name)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.tolist() == value.tolist() or name == "rows"
        assert digest(found) == digest(value)
    rows = files.read("rows").view(np.int32)
    np.testing.assert_array_equal(rows, VALUES["rows"].view(np.int32))


def test_files_are_those_of_tensorflow(tmp_path):
    """What `tf.train.Checkpoint` writes is read, and the other way round."""
    variable = tf.Variable([1.0, 2.0])
    (tmp_path / "variables").mkdir()
    tf.train.Checkpoint(x=variable).write(str(tmp_path / "variables" / "variables"))
    files = VariableFiles(tmp_path)
    variables = {name: files.read(name) for name in files.names}
    (name,) = [name for name in variables if name.startswith("x/")]
    variables[name] = np.array([3.0, 4.0], np.float32)
    write_variables(tmp_path / "other", variables)
    path = str(tmp_path / "other" / "variables" / "variables")
    tf.train.Checkpoint(x=variable).read(path).assert_consumed()
    np.testing.assert_array_equal(variable, [3.0, 4.0])


@pytest.mark.parametrize(
    "one, other",
    [
        (np.zeros(2, np.float32), np.zeros(2, np.int32)),
        (np.zeros((1, 2)), np.zeros((2, 1))),
        (np.array(0.0), np.array(-0.0)),
        (np.array([b"ab", b"c"], object), np.array([b"a", b"bc"], object)),
    ],
    ids=["type", "shape", "sign", "strings"],
)
def test_what_differs_has_another_digest(one, other):
    assert digest(one) != digest(other)
    assert digest(one) == digest(one.copy())
