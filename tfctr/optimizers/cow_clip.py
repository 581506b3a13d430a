"""`CowClip`: gradients of embedding rows, clipped by how many samples have the id."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from keras_layers.sparse_conversion import to_sparse_optimizer
from tfctr.distributed.ranks import exchange_of, merges_weights
from tfctr.optimizers.call_recorder import record_calls
from tfctr.optimizers.clipped_table import ClippedTable
from tfctr.optimizers.cow_clip_formulas import ClipRule
from tfctr.optimizers.embedding_layers import (
    check_entries,
    embeddings_of,
    paths_of,
    resolve,
    variable_of,
)
from tfctr.optimizers.gradients import without_missing
from tfctr_ops import SparseOptimizer


@keras.saving.register_keras_serializable(package="tfctr")
class CowClip(keras.optimizers.Optimizer):
    """Clips the gradient of each embedding row by the weights of the row and its count.

    With it, large batches train embeddings as well as small ones: a frequent id may
    move far, a rare one not. For each id, `g` being the gradient of its row, `w` its
    weights, and `count` the number of samples of the batch that have the id, in
    whatever column:

        clip = count * max(ratio * |w|, floor)
        g = g * min(1, clip / |g|) + 2 * l2 * w

    which an optimizer of Keras then gets. All other gradients pass through. The loss
    must be a mean over the batch. Of the embeddings, rows whose id does not occur have
    no gradient; an optimizer may still move them, as Keras' Adam does by its momentum.

    `model.compile(CowClip(optimizer, embeddings=[layer, ...]))` is for
    `keras.layers.Embedding`. Their calls are counted from the time that the optimizer
    is given the layers; forward pass, gradient and `apply` must stand in one
    `tf.function`, or in none, where the samples of all gradients taken since the last
    `apply` are one batch. Rows that are read otherwise too, such as tied weights, count
    those calls alone, and those that have none lose their gradient. The loss does not
    show L2.

    `TableConfig(optimizer=CowClip(optimizer))` is for the tables of `DynamicEmbedding`,
    and clips in their own update. Nothing else needs to know.

    On several ranks, `tfctr.distributed.DistributedOptimizer(CowClip(...))` averages
    the gradients and adds the counts before anything is clipped.

    Args:
        optimizer: Keras optimizer, or its name. Moves the weights.
        embeddings: List of layers: `keras.layers.Embedding`, or layers and models that
            have such inside. Or of their paths, as a loaded optimizer has them.
        ratio: Float, `r` of the paper. May be infinite: nothing is clipped.
        floor: Float, `ζ` of the paper. May be infinite: nothing is clipped. With 0,
            rows that are zero stay so.
        l2: Float. Strength of L2 on the rows of the batch, not halved, as in
            `keras.regularizers.L2`.
        variant: String. `"paper"`, or `"reference_code"` for what the authors released:
            the clip is `ratio * count * max(|w|, ratio * sqrt(dim) * floor)`, L2 is a
            part of what is clipped, and ids that do not occur count 1, so that L2 moves
            all rows.
        clip_linear: Boolean. Whether tables of width 1 are clipped too. They always get
            L2.
        embedding_optimizer: Keras optimizer, or its name, for the embeddings, with a
            learning rate of its own. `None`: `optimizer` moves them too.
        name: String.

    Raises:
        TypeError: If `optimizer` or `embeddings` are of another kind.
        ValueError: If an argument is out of range, an optimizer scales the loss or
            accumulates gradients, or an embedding is not trained by this model.

    Example:

    >>> ids, layer = keras.Input((2,)), keras.layers.Embedding(100, 4, name="ids")
    >>> outputs = keras.layers.Dense(1)(keras.layers.Flatten()(layer(ids)))
    >>> model = keras.Model(ids, outputs)
    >>> model.compile(CowClip("adam", [layer], l2=1e-5), "mean_squared_error")
    >>> history = model.fit(np.ones((8, 2)), np.ones(8), verbose=0)
    >>> model.optimizer.clipped_share
    {'ids': 1.0}

    References:
        - [Zheng et al., 2022](https://arxiv.org/abs/2204.06240), algorithm 1
    """

    def __init__(
        self,
        optimizer: Any,
        embeddings: Sequence[Any] = (),
        ratio: float = 1.0,
        floor: float = 1e-5,
        l2: float = 0.0,
        variant: str = "paper",
        clip_linear: bool = False,
        embedding_optimizer: Any = None,
        name: str | None = None,
    ) -> None:
        rule = ClipRule(ratio, floor, l2, variant, clip_linear)
        entries = check_entries(embeddings)
        optimizer = _checked("optimizer", optimizer)
        if embedding_optimizer is not None:
            embedding_optimizer = _checked("embedding_optimizer", embedding_optimizer)
        if embedding_optimizer is optimizer:
            embedding_optimizer = None
        if tf.distribute.has_strategy():
            raise ValueError(
                "CowClip counts on the ranks of `horovodrun`, not on the replicas of a "
                f"strategy. Received: {type(tf.distribute.get_strategy()).__name__}. "
                "Make it outside of `strategy.scope()`."
            )
        super().__init__(0.0, name=name)  # The learning rate is that of `optimizer`.
        self.optimizer = optimizer
        self.embedding_optimizer = embedding_optimizer
        self.rule = rule
        self._model = _ModelParts(entries)
        for entry in entries:
            if not isinstance(entry, str):
                for layer in embeddings_of(entry):
                    record_calls(layer)

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        variables = list(variables)
        tables = [
            ClippedTable(layer, variable_of(layer, variables), record_calls(layer))
            for layer in resolve(self._model.entries, variables)
        ]
        self._model.tables = tables
        self._model.variables = variables
        super().build(variables)
        own = [table.variable for table in tables]
        if self.embedding_optimizer is None:
            self.optimizer.build(variables)
        else:
            self.embedding_optimizer.build(own)
            self.optimizer.build([one for one in variables if not _is_in(own, one)])
        # By table: rows that were moved, and those of them that were clipped.
        self._row_counts = self.add_variable(
            (len(tables), 2), "zeros", "int64", name="row_counts"
        )

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        grads = list(grads)
        if not grads:
            return
        pairs = without_missing(grads, self._given(trainable_variables), "CowClip")
        exchanges = exchange_of(self) is not None
        row_counts = []
        for index, table in enumerate(self._model.tables):
            # Also without a gradient: what was noted must not count in the next step.
            passes = table.recorder.take()
            moved = tf.zeros([2], tf.int64)
            for position, (gradient, variable) in enumerate(pairs):
                if variable is table.variable:
                    exchange = f"cow_clip.ids.{index}" if exchanges else None
                    counted = table.counted_ids(passes, exchange)
                    gradient, moved = table.clip(gradient, *counted, self.rule)
                    pairs[position] = (gradient, variable)
            row_counts.append(moved)
        self._row_counts.assign_add(tf.stack(row_counts))
        if self.embedding_optimizer is None:
            _apply(self.optimizer, pairs)
            return
        own = [table.variable for table in self._model.tables]
        _apply(self.embedding_optimizer, [one for one in pairs if _is_in(own, one[1])])
        _apply(self.optimizer, [one for one in pairs if not _is_in(own, one[1])])

    def sparse_optimizer(self) -> SparseOptimizer:
        """Returns what an update does to a row of a table.

        Raises:
            ValueError: If the table cannot do it.
        """
        if self.rule.variant != "paper":
            raise ValueError(
                "A table moves the rows of the batch alone, and the reference code "
                f"moves all. Received: variant={self.rule.variant!r}. Use "
                "variant='paper' for the optimizer of a table."
            )
        if self._model.entries or self.embedding_optimizer is not None:
            raise ValueError(
                "The optimizer of a table moves its rows and nothing else. Received: "
                f"CowClip with {len(self._model.entries)} `embeddings` and "
                f"embedding_optimizer={self.embedding_optimizer}. Give the table a "
                "CowClip(optimizer) of its own."
            )
        return dataclasses.replace(
            to_sparse_optimizer(self.optimizer),
            clip_ratio=self.rule.ratio,
            clip_floor=self.rule.floor,
            l2_penalty=self.rule.l2,
            clip_linear=self.rule.clip_linear,
        )

    @property
    def clipped_share(self) -> dict[str, float]:
        """By path of an embedding, the share of row updates so far that were clipped.

        Counted are, in each step, the rows of the ids of the batch.
        """
        if not self.built:
            return {}
        counts = keras.ops.convert_to_numpy(self._row_counts)
        return {
            table.layer.path: float(clipped / max(moved, 1))
            for table, (moved, clipped) in zip(self._model.tables, counts, strict=True)
        }

    @property
    def embedding_learning_rate(self) -> Any:
        """The learning rate of the embeddings; `learning_rate` is that of the rest."""
        return (self.embedding_optimizer or self.optimizer).learning_rate

    @embedding_learning_rate.setter
    def embedding_learning_rate(self, learning_rate: Any) -> None:
        (self.embedding_optimizer or self.optimizer).learning_rate = learning_rate

    @property
    def learning_rate(self) -> Any:
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        return self.optimizer.iterations

    @property
    def variables(self) -> list[Any]:
        found = list(super().variables) + list(self.optimizer.variables)
        if self.embedding_optimizer is not None:
            found += self.embedding_optimizer.variables
        return found

    # Keras saves the optimizers inside by themselves.

    def save_own_variables(self, store: Any) -> None:
        for index, variable in enumerate(super().variables):
            store[str(index)] = keras.ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Any) -> None:
        for index, variable in enumerate(super().variables):
            variable.assign(store[str(index)])

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        own = [table.variable for table in self._model.tables]
        if self.embedding_optimizer is None:
            self.optimizer.finalize_variable_values(var_list)
            return
        self.embedding_optimizer.finalize_variable_values(own)
        self.optimizer.finalize_variable_values(
            [one for one in var_list if not _is_in(own, one)]
        )

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "optimizer": serialize(self.optimizer),
            "embedding_optimizer": serialize(self.embedding_optimizer),
            "embeddings": self._model.paths(),
            **dataclasses.asdict(self.rule),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        config = dict(config)
        for part in ("optimizer", "embedding_optimizer"):
            config[part] = keras.saving.deserialize_keras_object(
                config[part], custom_objects=custom_objects
            )
        return cls(**config)

    def _given(self, variables: Sequence[Any] | None) -> list[Any]:
        """The variables of a call of `apply`, which may be the first."""
        if variables is not None:
            variables = list(variables)
            self.build(variables)
            for variable in variables:
                if not _is_in(self._model.variables, variable):
                    raise ValueError(
                        "CowClip must be applied to the variables it was built with. "
                        f"Received: '{variable.path}', which is none of them. Make an "
                        "optimizer for each model."
                    )
            return variables
        if not self.built:
            raise ValueError(
                "CowClip must know its variables to apply gradients. Received: "
                "gradients only, before `build`. Say apply(gradients, variables)."
            )
        return self._model.variables


@dataclasses.dataclass
class _ModelParts:
    """What is the model's own. In a list, Keras would take it for the optimizer's."""

    entries: tuple[Any, ...]
    tables: list[ClippedTable] = dataclasses.field(default_factory=list)
    variables: list[Any] = dataclasses.field(default_factory=list)

    def paths(self) -> list[str]:
        return paths_of([table.layer for table in self.tables] or self.entries)


def _apply(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
    if pairs:
        optimizer.apply(*map(list, zip(*pairs, strict=True)))
    else:
        optimizer.iterations.assign_add(1)  # All optimizers count the same steps.


def _is_in(variables: Sequence[Any], wanted: Any) -> bool:
    return any(variable is wanted for variable in variables)


def _checked(argument: str, optimizer: Any) -> Any:
    """Returns the optimizer inside, if CowClip can stand around it."""
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"`{argument}` must be a Keras optimizer, or its name. Received: "
            f"{argument}={optimizer!r}."
        )
    kinds = (CowClip, keras.optimizers.LossScaleOptimizer)
    if isinstance(optimizer, kinds) or merges_weights(optimizer):
        raise ValueError(
            f"`{argument}` must be a plain Keras optimizer. Received: "
            f"{type(optimizer).__name__}, which changes the gradients, or the weights, "
            "of a step itself."
        )
    if exchange_of(optimizer) is not None:
        raise ValueError(
            f"`{argument}` must not exchange gradients: what is clipped is the "
            "gradient of all ranks. Received: an optimizer that DistributedOptimizer "
            "has made. Say DistributedOptimizer(CowClip(optimizer, ...))."
        )
    for option in ("loss_scale_factor", "gradient_accumulation_steps"):
        if getattr(optimizer, option):
            raise ValueError(
                "CowClip clips the gradient of the loss, at every step. Received: "
                f"{option}={getattr(optimizer, option)!r} of `{argument}`. Leave it "
                "out."
            )
    return optimizer
