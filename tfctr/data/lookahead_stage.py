"""`lookahead`: brings the rows of coming batches up while the current one trains."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_layers import DynamicEmbedding
from keras_layers.number_checks import is_integer


def lookahead(
    dataset: tf.data.Dataset,
    layers: "DynamicEmbedding | Sequence[DynamicEmbedding] | Mapping[str, Any]",
    steps: int = 2,
) -> tf.data.Dataset:
    """Returns the same batches; their rows are read ahead where reads take time.

    For tables with `TieredStorage(ssd=...)`: while a batch trains, the rows of the next
    `steps` batches are read from disk. This changes the time a step takes, and no
    number: a row comes up as it is, and is trained in its turn. While the page cache of
    the system holds the files, there is no disk to wait for, and nothing is done. The
    rows read ahead for one batch take at most half of `ram`.

    Args:
        dataset: `tf.data.Dataset` of inputs, or of tuples that begin with them.
        layers: What looks the inputs up: a built `DynamicEmbedding`, or a list of
            them, each of which is given the whole inputs; if they are a dict, the
            entries that the layer names. Or a dict from the name of an input to the
            layer, or list of layers, that is given this input alone.
        steps: Integer. How many batches ahead.

    Returns:
        `tf.data.Dataset` of the same elements, in the same order.

    Raises:
        ValueError: If a layer is not built, `steps` is not positive, or an input is not
            there.

    Example:

    >>> import keras
    >>> from keras_layers import TableConfig
    >>> layer = DynamicEmbedding(TableConfig("ads", 2, keras.optimizers.SGD(0.1)))
    >>> layer.build((None, 2))
    >>> data = tf.data.Dataset.from_tensors([[1, 2], [3, 4]])
    >>> len(lookahead(data, layer, steps=2))
    1
    """
    if not is_integer(steps) or steps < 1:
        raise ValueError(
            f"`steps` must be a positive integer. Received: steps={steps!r}."
        )
    pairs = _pairs(layers)
    for _, layer in pairs:
        if not layer.built:
            raise ValueError(
                f"Layer '{layer.name}' has no table yet, whose rows could be brought "
                "up. Call the model on one batch before `lookahead`."
            )

    def bring_up(*element: Any) -> Any:
        for name, layer in pairs:
            inputs = _inputs_of(layer, name, element[0])
            layer.prefetch(inputs, unless_cached=True)
        return element if len(element) > 1 else element[0]

    # The stage behind it keeps `steps` batches, so this one runs as far ahead.
    return dataset.map(bring_up).prefetch(steps)


def _pairs(layers: Any) -> list[tuple[str | None, DynamicEmbedding]]:
    if isinstance(layers, Mapping):
        return [
            (name, layer)
            for name, some in layers.items()
            for layer in (some if isinstance(some, (list, tuple)) else [some])
        ]
    some = layers if isinstance(layers, (list, tuple)) else [layers]
    return [(None, layer) for layer in some]


def _inputs_of(layer: DynamicEmbedding, name: str | None, inputs: Any) -> Any:
    wanted = set(layer.features) - {""} if name is None else {name}
    if not wanted or (name is None and not isinstance(inputs, Mapping)):
        return inputs
    missing = wanted - (set(inputs) if isinstance(inputs, Mapping) else set())
    if missing:
        here = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise ValueError(
            f"Layer '{layer.name}' looks up the inputs {sorted(wanted)}. Received: "
            f"inputs {here}, without {sorted(missing)}. Say which input it is given: "
            "lookahead(dataset, {'input': layer}, steps)."
        )
    return inputs[name] if name is not None else {n: inputs[n] for n in wanted}
