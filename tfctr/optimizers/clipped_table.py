"""An embedding layer of Keras, and how `CowClip` clips its gradient."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfctr.distributed import engine
from tfctr.optimizers.call_recorder import Call, CallRecorder, count_samples, narrow
from tfctr.optimizers.cow_clip_formulas import ClipRule, clip_rows
from tfctr.optimizers.gradients import densify


@dataclasses.dataclass(frozen=True)
class ClippedTable:
    """An embedding layer, its weights, and what notes its ids."""

    layer: keras.layers.Embedding
    variable: Any
    recorder: CallRecorder

    def counted_ids(
        self, passes: Sequence[Sequence[Call]], exchange: str | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids of a step, and which of them count, as `count_samples` does.

        Args:
            passes: What `recorder` has noted.
            exchange: String. A name under which all ranks add what they have noted.
                `None`: this rank is alone.

        Raises:
            ValueError: If nothing was noted.
        """
        if not passes:
            raise ValueError(
                f"CowClip must see the ids of each step. Received: a gradient of layer "
                f"'{self.layer.path}' without them. Build the optimizer before the "
                "first forward pass, optimizer.build(model.trainable_variables), and "
                "have forward pass, gradient and `apply` in one tf.function, or in "
                "none; a tf.function or tf.while_loop inside of it must hold neither "
                "the layer nor the gradient."
            )
        ids, ones = count_samples(passes, self.layer.input_dim)
        if exchange is None or engine.size() == 1:
            return ids, ones
        ids = engine.all_gather(tf.boolean_mask(ids, ones > 0), exchange)
        return ids, tf.ones_like(ids, tf.float32)

    def clip(
        self, gradient: Any, ids: tf.Tensor, ones: tf.Tensor, rule: ClipRule
    ) -> tuple[Any, tf.Tensor]:
        """Returns the gradient, clipped, and how many rows it moves and has clipped.

        Args:
            gradient: Tensor or `tf.IndexedSlices`.
            ids: Integer tensor `(n,)`, as `narrow` has them.
            ones: float32 tensor `(n,)`: which of them count.
            rule: `ClipRule`.

        Returns:
            The gradient of the same kind, each row in it once; of the variant
            `"reference_code"` always a tensor. And int64 `(2,)`, of rows with an id.
        """
        weights = tf.convert_to_tensor(self.variable)
        clipped: Any
        if isinstance(gradient, tf.IndexedSlices) and rule.variant == "paper":
            indices = narrow(gradient.indices, self.layer.input_dim)
            # Keras squares each slice of a row by itself.
            rows, positions = tf.unique(tf.concat([indices, ids], 0))
            num_rows, num_slices = tf.size(rows), tf.size(indices)
            values = tf.math.unsorted_segment_sum(
                gradient.values, positions[:num_slices], num_rows
            )
            counts = tf.math.unsorted_segment_sum(
                ones, positions[num_slices:], num_rows
            )
            clipped, is_clipped = clip_rows(
                values, tf.gather(weights, rows), counts, rule
            )
            clipped = tf.IndexedSlices(clipped, rows, gradient.dense_shape)
        else:
            counts = tf.math.unsorted_segment_sum(ones, ids, self.layer.input_dim)
            dense = densify(gradient, self.variable)
            clipped, is_clipped = clip_rows(dense, weights, counts, rule)
        has_id = counts > 0
        moved = tf.stack([has_id, has_id & is_clipped])
        return clipped, tf.reduce_sum(tf.cast(moved, tf.int64), axis=1)
