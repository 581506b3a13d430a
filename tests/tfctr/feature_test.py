"""`Feature`: shapes and refusals."""

import pytest

from tfctr.data import Feature


@pytest.mark.parametrize(
    ("feature", "shape", "is_dense"),
    [
        (Feature("user", "int64"), (), False),
        (Feature("ids", "int64", width=1), (1,), False),
        (Feature("ids", "int64", width=26), (26,), False),
        (Feature("genres", "string", is_bag=True), (None,), False),
        (Feature("price", "float32"), (), True),
        (Feature("dense", "float32", width=13), (13,), True),
    ],
)
def test_shape_of_one_example(feature, shape, is_dense):
    assert feature.shape == shape
    assert feature.is_dense == is_dense


@pytest.mark.parametrize("name", ["", None])
def test_name_must_be_a_string_with_characters(name):
    with pytest.raises(ValueError, match=f"Received: name={name!r}. It is the"):
        Feature(name, "int64")


def test_dtype_must_be_known():
    with pytest.raises(ValueError, match="Received: dtype='int32'. Use 'int64'"):
        Feature("user", "int32")


@pytest.mark.parametrize("width", [0, -1])
def test_width_must_be_positive(width):
    with pytest.raises(ValueError, match=f"Received: width={width}. Use None"):
        Feature("ids", "int64", width=width)


@pytest.mark.parametrize(("dtype", "width"), [("float32", None), ("int64", 2)])
def test_bag_is_neither_dense_nor_wide(dtype, width):
    with pytest.raises(
        ValueError, match=f"Received: dtype='{dtype}', width={width}. Describe each bag"
    ):
        Feature("genres", dtype, is_bag=True, width=width)
