"""The inputs of a model as the named tensors of a signature."""

import dataclasses
import keyword
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

Tensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class ModelInput:
    """One input of a model, `(batch, ...)`.

    Args:
        name: String.
        shape: Sizes, `None` where any will do.
        dtype: `tf.DType`.
        ragged: Boolean. Whether each example has any number of values: the shape is
            `(batch, None)`.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: tf.DType
    ragged: bool

    @property
    def splits_name(self) -> str:
        """The tensor that says where the values of each example begin."""
        return f"{self.name}_row_splits"

    def tensor_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the tensors of a request by name."""
        if not self.ragged:
            return {self.name: tf.TensorSpec(self.shape, self.dtype, self.name)}
        return {
            self.name: tf.TensorSpec([None], self.dtype, self.name),
            self.splits_name: tf.TensorSpec([None], tf.int64, self.splits_name),
        }

    def from_tensors(self, tensors: Mapping[str, tf.Tensor]) -> Any:
        """Returns what the model is called with."""
        values = tensors[self.name]
        if not self.ragged:
            return values
        return tf.RaggedTensor.from_row_splits(values, tensors[self.splits_name])

    def to_tensors(self, value: Any) -> Tensors:
        """Returns a request; the inverse of `from_tensors`."""
        if self.ragged != isinstance(value, tf.RaggedTensor):
            raise ValueError(
                f"`examples` must have a {'ragged' if self.ragged else 'dense'} tensor "
                f"for input '{self.name}'. Received: {type(value).__name__}."
            )
        if not self.ragged:
            return {self.name: tf.cast(_tensor(value), self.dtype)}
        return {
            self.name: tf.cast(value.flat_values, self.dtype),
            self.splits_name: tf.cast(value.row_splits, tf.int64),
        }

    def example_feature(self) -> Any:
        """Returns how `tf.io.parse_example` finds it; `None` if it cannot.

        Examples hold int64, float32 and strings; other types are stored as these.
        """
        stored = tf.float32 if self.dtype.is_floating else tf.int64
        stored = tf.string if self.dtype == tf.string else stored
        if self.ragged:
            return tf.io.RaggedFeature(stored, row_splits_dtype=tf.int64)
        if None in self.shape[1:]:
            return None
        return tf.io.FixedLenFeature(self.shape[1:], stored)

    def from_example(self, parsed: Any) -> Any:
        """Returns what the model is called with, of what `parse_example` found."""
        return parsed if parsed.dtype == self.dtype else tf.cast(parsed, self.dtype)


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """All inputs of a model, and the structure it takes them in.

    Args:
        flat: `ModelInput`s.
        structure: What the model takes, with a place in `flat` for each tensor.
    """

    flat: tuple[ModelInput, ...]
    structure: Any

    @classmethod
    def of(cls, model: keras.Model, examples: Any = None) -> "ModelInputs":
        """Returns the inputs that a model declares, or else those of `examples`.

        Raises:
            ValueError: If there is neither, if two tensors have one name, or one has a
                name that TensorFlow would change.
        """
        declared = _declared(model)
        if declared is None:
            declared = examples
        if declared is None:
            raise ValueError(
                f"Model '{model.name}' is not functional, and does not say what its "
                "inputs are. Received: examples=None. Show a batch of them: "
                "saved_model(model, directory, examples=batch)."
            )
        flat = tf.nest.flatten(declared)
        inputs = tuple(map(_describe, _names(declared), flat))
        tensors = [name for each in inputs for name in each.tensor_specs()]
        if len(set(tensors)) < len(tensors):
            raise ValueError(
                "Each tensor of a request needs a name of its own, and a ragged input "
                f"NAME has another one, NAME_row_splits. Received: {tensors}. Name the "
                "inputs: keras.Input(..., name=...)."
            )
        for name in tensors:
            _check_name(name)
        places = tf.nest.pack_sequence_as(declared, range(len(flat)))
        return cls(inputs, places)

    def tensor_specs(self) -> dict[str, tf.TensorSpec]:
        """Returns all tensors of a request by name."""
        specs: dict[str, tf.TensorSpec] = {}
        for each in self.flat:
            specs |= each.tensor_specs()
        return specs

    def from_tensors(self, tensors: Mapping[str, tf.Tensor]) -> Any:
        """Returns what the model is called with."""
        return self._pack([each.from_tensors(tensors) for each in self.flat])

    def from_examples(self, serialized: tf.Tensor) -> Any:
        """Returns what the model is called with, of serialized `tf.train.Example`s."""
        features = {each.name: each.example_feature() for each in self.flat}
        parsed = tf.io.parse_example(serialized, features)
        return self._pack([each.from_example(parsed[each.name]) for each in self.flat])

    def to_tensors(self, inputs: Any) -> Tensors:
        """Returns a request for what the model would be called with.

        Raises:
            ValueError: If it is not what the model takes.
        """
        try:
            tf.nest.assert_same_structure(inputs, self.structure, check_types=False)
        except (ValueError, TypeError) as error:
            raise ValueError(
                "`examples` must be a batch of inputs as the model takes them: "
                f"{[each.name for each in self.flat]}. Received: "
                f"{tf.nest.map_structure(lambda part: type(part).__name__, inputs)}."
            ) from error
        tensors: Tensors = {}
        for each, value in zip(self.flat, tf.nest.flatten(inputs), strict=True):
            tensors |= each.to_tensors(value)
        return tensors

    @property
    def without_size(self) -> list[str]:
        """Names of inputs whose width may change, which no `Example` can tell."""
        return [each.name for each in self.flat if each.example_feature() is None]

    def _pack(self, flat: Sequence[Any]) -> Any:
        return tf.nest.pack_sequence_as(self.structure, flat)


def _declared(model: keras.Model) -> Any:
    """Returns the Keras tensors that a model takes, `None` if it does not say."""
    if isinstance(model, keras.Sequential):
        return model.inputs[0] if model.inputs else None
    return getattr(model, "input", None)


def _tensor(value: Any) -> tf.Tensor:
    return value if tf.is_tensor(value) else tf.convert_to_tensor(value)


def _names(declared: Any) -> list[str]:
    """Returns the names of inputs: keys of a flat dict, or else those of Keras."""
    flat = tf.nest.flatten(declared)
    if isinstance(declared, dict) and not any(
        map(tf.nest.is_nested, declared.values())
    ):
        return sorted(declared)  # As `tf.nest` flattens it.
    if len(flat) == 1 and not isinstance(flat[0], keras.KerasTensor):
        return ["inputs"]
    return [
        value.name if isinstance(value, keras.KerasTensor) else f"inputs_{number}"
        for number, value in enumerate(flat)
    ]


def _check_name(name: str) -> None:
    # TensorFlow makes other names fit, without a word, and clients would not know.
    fits = name.isascii() and name.isidentifier() and name[0].isalpha()
    if not fits or keyword.iskeyword(name) or name == "self":
        raise ValueError(
            "The inputs of a signature have names of letters, digits and underscores, "
            f"the first a letter, such as 'user_id'. Received: '{name}'. Rename the "
            "input: keras.Input(..., name=...)."
        )


def _describe(name: str, value: Any) -> ModelInput:
    ragged = bool(getattr(value, "ragged", isinstance(value, tf.RaggedTensor)))
    if not isinstance(value, (keras.KerasTensor, tf.RaggedTensor)):
        value = _tensor(value)
    # Examples are one batch of many.
    shape = (None, *value.shape[1:])
    return ModelInput(name, shape, tf.as_dtype(value.dtype), ragged)
