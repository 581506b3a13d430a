"""Finds the `keras.layers.Embedding` that the variables of an optimizer belong to."""

import gc
from collections.abc import Sequence
from typing import Any

import keras


def check_entries(embeddings: Any) -> tuple[Any, ...]:
    """Returns the layers and paths given, checked.

    Raises:
        TypeError: If they are neither.
    """
    is_list = isinstance(embeddings, (list, tuple))
    kinds = (keras.layers.Layer, str)
    if not is_list or not all(isinstance(entry, kinds) for entry in embeddings):
        raise TypeError(
            "`embeddings` must be a list of layers, or of their paths. Received: "
            f"embeddings={embeddings!r}. Say embeddings=[layer]."
        )
    return tuple(embeddings)


def embeddings_of(layer: keras.layers.Layer) -> list[keras.layers.Embedding]:
    """Returns the embedding layers in a layer: itself, or those inside of it.

    Those inside can only be found once they are built.
    """
    if isinstance(layer, keras.layers.Embedding):
        return [layer]
    return owners(layer.trainable_variables)


def owners(variables: Sequence[Any]) -> list[keras.layers.Embedding]:
    """Returns the embedding layers that these variables belong to, in their order.

    A variable does not know its layer, and an optimizer that comes out of a file is
    given variables only. So all layers there are must be looked at.
    """
    positions = {id(variable): index for index, variable in enumerate(variables)}
    found = {}
    for one in gc.get_objects():
        # Not `isinstance`, which would wake what stands in for another object.
        if not issubclass(type(one), keras.layers.Embedding):
            continue
        for variable in one.variables:
            if id(variable) in positions:
                found[positions[id(variable)]] = one
    return [found[index] for index in sorted(found)]


def resolve(
    entries: Sequence[Any], variables: Sequence[Any]
) -> list[keras.layers.Embedding]:
    """Returns the embedding layers that layers and paths stand for.

    Args:
        entries: Layers, or paths of embedding layers.
        variables: Trainable variables of the model.

    Raises:
        ValueError: If there is none, one is unknown, or it is not trained.
    """
    if all(isinstance(entry, keras.layers.Embedding) for entry in entries) and entries:
        known = list(entries)
    else:
        known = owners(variables)
    paths = [layer.path for layer in known]
    if not entries:
        raise ValueError(
            "CowClip must be told which embeddings it clips. Received: embeddings=(). "
            + (
                f"The model has {paths}: say CowClip(..., embeddings=[layer, ...])."
                if paths
                else "The model has no keras.layers.Embedding; a table of "
                "DynamicEmbedding takes it as TableConfig(optimizer=CowClip(...))."
            )
        )
    found: list[keras.layers.Embedding] = []
    for entry in entries:
        if isinstance(entry, str):
            found += _named(entry, entries, known)
        else:
            found += embeddings_of(entry) or _fail_without_embedding(entry)
    found = list({id(layer): layer for layer in found}.values())
    for layer in found:
        variable_of(layer, variables)
    return found


def variable_of(layer: keras.layers.Embedding, variables: Sequence[Any]) -> Any:
    """Returns the table of an embedding layer.

    Raises:
        ValueError: If it is none of the variables, or more than one is.
    """
    trained = [
        one for one in layer.variables if any(one is other for other in variables)
    ]
    if len(trained) == 1 and trained[0].shape == (layer.input_dim, layer.output_dim):
        return trained[0]
    raise ValueError(
        "CowClip clips embeddings that the optimizer trains as a whole. Received: "
        f"layer '{layer.path or layer.name}', built={layer.built}, "
        f"trainable={layer.trainable}, of whose variables {len(trained)} are trained. "
        "Leave it out of `embeddings`, or make it a trainable layer of this model, "
        "without LoRA."
    )


def paths_of(entries: Sequence[Any]) -> list[str]:
    """Returns the paths by which `resolve` finds the same layers again.

    Raises:
        ValueError: If a layer is not built: it has none.
    """
    paths: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            paths.append(entry)
            continue
        layers = embeddings_of(entry)
        if not layers or any(layer.path is None for layer in layers):
            raise ValueError(
                "The embeddings of CowClip must be built before they have paths to be "
                f"saved by. Received: layer '{entry.name}'. Call the model once first: "
                "model(inputs)."
            )
        paths += [layer.path for layer in layers]
    return paths


def _named(
    path: str, entries: Sequence[Any], known: Sequence[keras.layers.Embedding]
) -> list[keras.layers.Embedding]:
    found = _candidates(path, known)
    paths = [layer.path for layer in known]
    if not found:
        raise ValueError(
            "`embeddings` must hold paths of trained keras.layers.Embedding layers. "
            f"Received: '{path}'. The model has {paths}."
        )
    # One path may stand for two layers if both are asked for.
    asked = [one for one in entries if _candidates(one, known) == found]
    if len(found) > len(asked):
        raise ValueError(
            f"A path must stand for one layer. Received: '{path}', for which "
            f"{len(found)} of {paths} may stand. Give the layers themselves, or give "
            "each layer a name of its own."
        )
    return found


def _candidates(
    path: Any, known: Sequence[keras.layers.Embedding]
) -> list[keras.layers.Embedding]:
    exact = [layer for layer in known if layer.path == path]
    # Keras may name the model in a path before a model is saved, and not after.
    return exact or [
        layer
        for layer in known
        if f"/{path}".endswith(f"/{layer.path}")
        or f"/{layer.path}".endswith(f"/{path}")
    ]


def _fail_without_embedding(layer: keras.layers.Layer) -> list[keras.layers.Embedding]:
    raise ValueError(
        "`embeddings` must hold layers that are, or have, keras.layers.Embedding. "
        f"Received: {type(layer).__name__} '{layer.name}', built={layer.built}. A "
        "table of DynamicEmbedding takes TableConfig(optimizer=CowClip(...)); other "
        "layers show theirs once the model is built: model(inputs)."
    )
