"""`CrossNetwork`: explicit feature crosses of bounded degree (DCN, DCN v2, DCN-Mix)."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from keras_layers.number_checks import is_integer

Shape = tuple[int | None, ...]

VARIANTS = ("vector", "matrix", "mixture")


def mix_experts(
    inputs: tf.Tensor, kernels: Sequence[tf.Tensor], gate: tf.Tensor
) -> tf.Tensor:
    """Projects `(batch, d)` to `(batch, d)` through gated low-rank experts.

    `kernels` are `V` (experts, d, rank), `C` (experts, rank, rank) and `U`
    (experts, rank, d); `gate` is (d, experts). The gate multiplies the hidden
    units instead of the outputs: the sum over the experts is then part of the last
    product, and no tensor of shape (batch, experts, d) is made.
    """
    reduce, transform, expand = kernels
    hidden = ops.tanh(ops.einsum("bd,edr->ber", inputs, reduce))
    hidden = ops.tanh(ops.einsum("ber,ers->bes", hidden, transform))
    shares = ops.softmax(ops.matmul(inputs, gate), axis=-1)  # (batch, experts)
    return ops.einsum("bes,esd->bd", shares[:, :, None] * hidden, expand)


def distinct_draws(initializer: Any) -> Callable[..., tf.Tensor]:
    """Returns an initializer that draws other numbers for every matrix.

    A Keras initializer returns the same numbers at each call, so all kernels of one
    shape would start equal, and equal experts would stay much alike. The experts of
    a kernel (experts, rows, columns) are drawn one by one, so that its scale is that
    of one matrix.
    """
    indices = itertools.count()

    def draw(shape: Sequence[int], dtype: str | None = None) -> tf.Tensor:
        if len(shape) == 3:
            return ops.stack([draw(shape[1:], dtype) for _ in range(shape[0])])
        return _reseed(initializer, next(indices))(shape, dtype=dtype)

    return draw


def _reseed(initializer: Any, index: int) -> Any:
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer  # A plain function: it is up to its author.
    config = initializer.get_config()
    seed = config.get("seed")
    if isinstance(seed, dict):
        return initializer  # A `SeedGenerator` moves on by itself.
    if isinstance(seed, int):
        config["seed"] = seed + index
    return type(initializer).from_config(config)


@keras.saving.register_keras_serializable(package="tfctr")
class CrossNetwork(keras.layers.Layer):
    """Stacks cross layers, each of which raises the degree of the features by one.

    With `x_0` the inputs and `*` the elementwise product, layer `l` computes

        "vector"   x_{l+1} = x_0 (w_l . x_l) + b_l + x_l                        (DCN)
        "matrix"   x_{l+1} = x_0 * (W_l x_l + b_l) + x_l                     (DCN v2)
        "mixture"  x_{l+1} = x_0 * (sum_e G_e(x_l) E_le(x_l) + b_l) + x_l   (DCN-Mix)

    where `W_l` is `U_l V_l` if `rank` is given, `E_le(x)` is
    `U_le tanh(C_le tanh(V_le x))`, and the gate `G(x)` is `softmax(gate x)`. All
    layers share one gate. Choose `"vector"` for few parameters, `"matrix"` for the
    best fit, a rank where `d` is large.

    Args:
        num_layers: Integer. Number of cross layers; the output holds crosses up to
            degree `num_layers + 1`.
        variant: String. One of `"vector"`, `"matrix"`, `"mixture"`.
        rank: Integer. Inner width of the low-rank kernels. `None` means full
            kernels, for `"matrix"` only; `"mixture"` needs a rank.
        num_experts: Integer. Number of experts, for `"mixture"` only.
        kernel_initializer: Initializer of the kernels and the gate. Every kernel of
            every layer and expert draws its own numbers. Biases start at zero.
        kernel_regularizer: Regularizer of the kernels, not of biases and gate.

    Call arguments:
        inputs: Float tensor of shape `(batch, d)`.

    Returns:
        Float tensor of shape `(batch, d)`.

    Raises:
        ValueError: If an argument is out of range or does not apply to `variant`,
            or if `inputs` is not of rank 2 with a static `d`.

    Example:

    >>> CrossNetwork(3, variant="mixture", rank=2, num_experts=4)(np.ones((2, 6))).shape
    TensorShape([2, 6])

    References:
        - [Wang et al., 2017](https://arxiv.org/abs/1708.05123), section 2.2
        - [Wang et al., 2021](https://arxiv.org/abs/2008.13535), sections 3.2 and 3.4
    """

    def __init__(
        self,
        num_layers: int,
        variant: str = "vector",
        rank: int | None = None,
        num_experts: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_arguments(num_layers, variant, rank, num_experts)
        self.num_layers = num_layers
        self.variant = variant
        self.rank = rank
        self.num_experts = num_experts
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape: Shape) -> None:
        d = self._width(input_shape)
        draw = distinct_draws(self.kernel_initializer)
        self._kernels = [
            [
                self.add_weight(
                    name=f"{name}_{layer}",
                    shape=shape,
                    initializer=draw,
                    regularizer=self.kernel_regularizer,
                )
                for name, shape in self._kernel_shapes(d).items()
            ]
            for layer in range(self.num_layers)
        ]
        self._biases = [
            self.add_weight(name=f"bias_{layer}", shape=(d,), initializer="zeros")
            for layer in range(self.num_layers)
        ]
        if self.variant == "mixture":
            self._gate = self.add_weight(
                name="gate", shape=(d, self.num_experts), initializer=draw
            )
        self.input_spec = keras.layers.InputSpec(ndim=2, axes={1: d})

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        first = crossed = ops.cast(inputs, self.compute_dtype)
        for kernels, bias in zip(self._kernels, self._biases, strict=True):
            if self.variant == "vector":
                # (batch, d) * (batch, 1) + (d,)
                change = first * ops.matmul(crossed, kernels[0]) + bias
            else:
                change = first * (self._project(crossed, kernels) + bias)
            crossed = crossed + change
        return crossed

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], self._width(input_shape))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "variant": self.variant,
            "rank": self.rank,
            "num_experts": self.num_experts,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }

    def _kernel_shapes(self, d: int) -> dict[str, Shape]:
        if self.variant == "vector":
            return {"kernel": (d, 1)}
        if self.variant == "mixture":
            experts, rank = self.num_experts, self.rank
            return {
                "reduce": (experts, d, rank),
                "transform": (experts, rank, rank),
                "expand": (experts, rank, d),
            }
        if self.rank is not None:
            return {"reduce": (d, self.rank), "expand": (self.rank, d)}
        return {"kernel": (d, d)}

    def _project(self, inputs: tf.Tensor, kernels: Sequence[tf.Tensor]) -> tf.Tensor:
        if self.variant == "mixture":
            return mix_experts(inputs, kernels, self._gate)
        for kernel in kernels:  # One full kernel, or two low-rank ones.
            inputs = ops.matmul(inputs, kernel)
        return inputs

    def _width(self, input_shape: Shape) -> int:
        if len(input_shape) != 2 or input_shape[1] is None:
            raise ValueError(
                f"`CrossNetwork` layer '{self.name}' expects inputs of shape "
                "(batch, d), with a static `d`. "
                f"Received: input_shape={tuple(input_shape)}. "
                "Flatten the embeddings first: keras.layers.Flatten()(embeddings)."
            )
        return input_shape[1]


def _check_arguments(
    num_layers: int, variant: str, rank: int | None, num_experts: int | None
) -> None:
    _check_positive("num_layers", num_layers, "Pass the number of cross layers.")
    if variant not in VARIANTS:
        raise ValueError(
            f"`variant` must be one of {str(VARIANTS)[1:-1]}. "
            f"Received: variant={variant!r}."
        )
    if variant == "mixture":
        _check_positive("rank", rank, "Pass the inner width of an expert.")
        _check_positive("num_experts", num_experts, "Pass the number of experts.")
        return
    if num_experts is not None:
        raise ValueError(
            "`num_experts` applies to variant='mixture' only. "
            f"Received: num_experts={num_experts}, variant={variant!r}. "
            "Leave num_experts out, or pass variant='mixture'."
        )
    if rank is None:
        return
    if variant == "vector":
        raise ValueError(
            "`rank` applies to variant='matrix' or 'mixture' only. "
            f"Received: rank={rank}, variant='vector'. "
            "Leave rank out, or pass variant='matrix'."
        )
    _check_positive("rank", rank, "Pass None for full kernels.")


def _check_positive(name: str, value: Any, remedy: str) -> None:
    if not is_integer(value) or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}. {remedy}"
        )
