"""`KStepAdam`: each rank trains by itself, and every k steps the ranks merge."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfctr.distributed import engine
from tfctr.optimizers import k_step_formulas as formulas
from tfctr.optimizers.gradients import clip, densify, without_missing
from tfctr.optimizers.k_step_options import KStepOptions

# Of Keras' optimizers. Each would need steps, or a state, that merges know of.
_NOT_DONE = (
    "weight_decay",
    "use_ema",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


@keras.saving.register_keras_serializable(package="tfctr")
class KStepAdam(keras.optimizers.Optimizer):
    """Adam on each rank, with a mean over the ranks every k steps instead of each.

    For the dense weights of a model that is trained under `horovodrun`. The rows of a
    `DynamicEmbedding` have optimizers of their own and are never merged. Between two
    merges a rank follows the gradients of its own batches:

        m = beta_1 m + (1 - beta_1) g;   v = beta_2 v + (1 - beta_2) g²

    The three ways to merge:

    - `"frozen_denominator"`: all ranks divide by the same `s`, which changes in merges
      only, so that no rank takes larger steps than the others. In a merge:

          s = max(mean v, s);   x = mean(x - learning_rate m / sqrt(s))

      and in the steps between, `x -= learning_rate m / sqrt(s)`. It merges in the steps
      1, 1 + k, 1 + 2k, ..., and averages `v` and `x`.
    - `"parameters"`: each rank trains by Adam; `x` is averaged in the steps k, 2k, ...
    - `"parameters_and_moments"`: the same, and `m` and `v` are averaged too.

    `tfctr.callbacks.KStepMerge` also merges where an epoch or the training ends. With
    one process nothing is sent, and the steps are the same. With k=1 it is not Adam on
    the whole batch, since the mean of squares is not the square of the mean.

    Args:
        learning_rate: Float, schedule or callable.
        k: Integer. Steps from one merge to the next.
        merge: String. One of `"frozen_denominator"`, `"parameters"` and
            `"parameters_and_moments"`.
        beta_1: Float in [0, 1). Decay of the first moment.
        beta_2: Float in [0, 1). Decay of the second moment.
        epsilon: Float. With a frozen denominator the least `s`; else added to the root
            of the corrected `v`. `None` means 1e-8 and 1e-7.
        warmup_merges: Integer. In so many steps at the begin the ranks merge anyway: a
            denominator frozen early is too small. `None` means 50 with a frozen
            denominator, else 0.
        bias_correction: Boolean, with a frozen denominator only: whether `m` and `s`
            are corrected, each for the steps it has seen. `None` means no. The other
            ways to merge always correct, as Adam does.
        amsgrad: Boolean, with a frozen denominator only: whether `s` never falls.
            `None` means yes. Without, `s` is the mean `v`, and at least `epsilon`.
        **kwargs: Of `keras.optimizers.Optimizer`: `name`, `clipnorm`, `clipvalue` and
            `global_clipnorm`, which clip the gradients of a rank by themselves.

    Raises:
        ValueError: If an argument is out of range or not for this way to merge, Keras
            should do more (`weight_decay`, `use_ema`, `loss_scale_factor`,
            `gradient_accumulation_steps`, a `tf.distribute` strategy), or a variable is
            neither float32 nor float64.

    Example:

    >>> optimizer = KStepAdam(1e-3, k=4)
    >>> weight = keras.Variable([1.0, 2.0])
    >>> for _ in range(60):
    ...     optimizer.apply([tf.constant([1.0, -1.0])], [weight])
    >>> optimizer.merges, optimizer.merge_bytes
    ({'scheduled': 52, 'forced': 0}, 16)

    References:
        - [Zhao et al., 2022](https://arxiv.org/abs/2201.05500), k-step merged Adam
        - [Chen et al., 2021](https://arxiv.org/abs/2109.05109), the shared denominator
    """

    # What `tfctr.distributed`, which stands below, knows it by.
    merges_weights = True

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        *,
        k: int,
        merge: str = "frozen_denominator",
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float | None = None,
        warmup_merges: int | None = None,
        bias_correction: bool | None = None,
        amsgrad: bool | None = None,
        **kwargs: Any,
    ) -> None:
        options = KStepOptions.of(
            merge,
            k=k,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            warmup_merges=warmup_merges,
            bias_correction=bias_correction,
            amsgrad=amsgrad,
        )
        _check_keras_options(kwargs)
        super().__init__(learning_rate, **kwargs)
        self.options = options
        self._model = _ModelVariables()

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        variables = list(variables)
        for variable in variables:
            if variable.dtype not in ("float32", "float64"):
                raise ValueError(
                    "KStepAdam trains float32 and float64 variables; its moments need "
                    f"them. Received: '{variable.path}' of {variable.dtype}. Use the "
                    "policy 'mixed_bfloat16', whose variables are float32."
                )
        super().build(variables)

        def counter(name: str) -> Any:
            return self.add_variable((), "zeros", "int64", name=name)

        self._last_merge = counter("last_merge")
        self._scheduled_merges = counter("scheduled_merges")
        self._forced_merges = counter("forced_merges")
        self._largest_step = self.add_variable((), "zeros", "float32", name="largest")
        self._model.slots = [
            _Slots(
                variable,
                self.add_variable_from_reference(variable, "momentum"),
                self.add_variable_from_reference(variable, "velocity"),
                self.add_variable_from_reference(variable, "shared_velocity")
                if self.options.is_frozen
                else None,
            )
            for variable in variables
        ]

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        grads = list(grads)
        if not grads:
            return
        pairs = without_missing(
            grads, self._variables_of(trainable_variables), "KStepAdam"
        )
        slots = [self._model.slot_of(variable) for _, variable in pairs]
        gradients = clip([densify(*pair) for pair in pairs], self)
        options = self.options
        # Keras finds the end of the data by a step without data, which must neither
        # count nor merge: everything waits for the gradients.
        with tf.control_dependencies(gradients):
            step = tf.cast(self.iterations, tf.int64) + 1
            merges = formulas.is_merge_step(
                step, options.k, options.first_merge, options.warmup_merges
            )
            self._last_merge.assign(tf.where(merges, step, self._last_merge))
            self._scheduled_merges.assign_add(tf.cast(merges, tf.int64))
            self._update_moments(slots, gradients)
            if options.is_frozen:
                # Before the weights move: a refresh after it would be one step late.
                tf.cond(merges, self._refresh, lambda: None)
            self._move(slots, step)
            tf.cond(merges, self._average, lambda: None)
            self.iterations.assign_add(1)

    def merge(self) -> None:
        """Merges now, outside the schedule, unless the last step has merged.

        All ranks must call it between the same two steps. Eager only.
        """
        if not self.built or int(self._last_merge) == int(self.iterations):
            return
        if self.options.is_frozen:
            self._refresh()
        self._average()
        self._last_merge.assign(self.iterations)
        self._forced_merges.assign_add(1)

    def average_also(self, variables: Iterable[Any]) -> bool:
        """Says which untrained variables of the model are averaged with its weights.

        Such as the statistics of batch normalisation. `KStepMerge` calls it; a training
        loop of your own does it before its first step.

        Args:
            variables: Keras variables. Those that are not float are left out.

        Returns:
            Whether they are others than before: what was traced must be traced anew.
        """
        others = [one for one in variables if keras.backend.is_float_dtype(one.dtype)]
        before, self._model.others = self._model.others, others
        return [id(one) for one in before] != [id(one) for one in others]

    @property
    def merges(self) -> dict[str, int]:
        """How many merges there were, `"scheduled"` and `"forced"`."""
        if not self.built:
            return {"scheduled": 0, "forced": 0}
        return {
            "scheduled": int(self._scheduled_merges),
            "forced": int(self._forced_merges),
        }

    @property
    def merge_bytes(self) -> int:
        """How many bytes of each rank go into the means of one merge."""
        averaged = self._averaged()
        if self.options.is_frozen:
            averaged += [slot.velocity for slot in self._model.slots]
        return sum(one.value.dtype.size * math.prod(one.shape) for one in averaged)

    @property
    def replicated_variables(self) -> list[Any]:
        """What is equal on all ranks after a merge; moments may differ."""
        if not self.options.is_frozen:
            return self._averaged()
        return self._averaged() + [slot.shared_velocity for slot in self._model.slots]

    def take_largest_step(self) -> float:
        """Returns the largest |Δx| / learning_rate on this rank since the last call."""
        if not self.built:
            return 0.0
        largest = float(self._largest_step)
        self._largest_step.assign(0.0)
        return largest

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **dataclasses.asdict(self.options)}

    def _variables_of(self, variables: Sequence[Any] | None) -> list[Any]:
        """The variables of a call of `apply`, which may be the first."""
        if variables is not None:
            variables = list(variables)
            self.build(variables)
            return variables
        if not self.built:
            raise ValueError(
                "KStepAdam must know its variables to apply gradients. Received: "
                "gradients only, before `build`. Say apply(gradients, variables)."
            )
        return [slot.variable for slot in self._model.slots]

    def _update_moments(
        self, slots: list["_Slots"], gradients: list[tf.Tensor]
    ) -> None:
        for slot, gradient in zip(slots, gradients, strict=True):
            momentum, velocity = formulas.next_moments(
                tf.convert_to_tensor(slot.momentum),
                tf.convert_to_tensor(slot.velocity),
                gradient,
                self.options.beta_1,
                self.options.beta_2,
            )
            slot.momentum.assign(momentum)
            slot.velocity.assign(velocity)

    def _move(self, slots: list["_Slots"], step: tf.Tensor) -> None:
        learning_rate = tf.convert_to_tensor(self.learning_rate)
        largest = [tf.convert_to_tensor(self._largest_step)]
        for slot in slots:
            direction = self._direction(slot, step)
            size = tf.cast(learning_rate, direction.dtype)
            _assign(slot.variable, slot.variable - size * direction)
            largest.append(tf.cast(tf.reduce_max(tf.abs(direction)), tf.float32))
        self._largest_step.assign(tf.reduce_max(largest))

    def _direction(self, slot: "_Slots", step: tf.Tensor) -> tf.Tensor:
        """Where a variable goes, in learning rates."""
        options = self.options
        momentum = tf.convert_to_tensor(slot.momentum)
        velocity = tf.convert_to_tensor(
            slot.velocity if slot.shared_velocity is None else slot.shared_velocity
        )
        if options.bias_correction or not options.is_frozen:
            # A denominator has seen the steps up to the merge that made it.
            seen = self._last_merge if options.is_frozen else step
            momentum = formulas.correct_bias(momentum, options.beta_1, step)
            velocity = formulas.correct_bias(velocity, options.beta_2, seen)
        if options.is_frozen:
            return formulas.frozen_direction(momentum, velocity)
        return formulas.adam_direction(momentum, velocity, options.epsilon)

    def _refresh(self) -> None:
        """Makes the denominator of all ranks from their second moments."""
        slots = self._model.slots
        means = _mean([slot.velocity for slot in slots], "k_step_adam.velocities")
        for slot, mean in zip(slots, means, strict=True):
            shared = tf.convert_to_tensor(slot.shared_velocity)
            slot.shared_velocity.assign(
                formulas.next_shared_velocity(
                    mean, shared, self.options.epsilon, bool(self.options.amsgrad)
                )
            )

    def _average(self) -> None:
        """Gives all ranks the mean of their weights, and of what goes with them."""
        averaged = self._averaged()
        means = _mean(averaged, "k_step_adam.weights")
        for variable, mean in zip(averaged, means, strict=True):
            _assign(variable, mean)

    def _averaged(self) -> list[Any]:
        slots = self._model.slots
        averaged = [slot.variable for slot in slots]
        if self.options.merge == "parameters_and_moments":
            averaged += [slot.momentum for slot in slots]
            averaged += [slot.velocity for slot in slots]
        return averaged + self._model.others


@dataclasses.dataclass(frozen=True)
class _Slots:
    """A variable, and what the optimizer keeps for it."""

    variable: Any
    momentum: Any
    velocity: Any
    shared_velocity: Any  # None unless the denominator is frozen.


@dataclasses.dataclass
class _ModelVariables:
    """What is the model's own. In a list, Keras would take it for the optimizer's."""

    slots: list[_Slots] = dataclasses.field(default_factory=list)
    others: list[Any] = dataclasses.field(default_factory=list)

    def slot_of(self, variable: Any) -> _Slots:
        for slot in self.slots:
            if slot.variable is variable:
                return slot
        raise ValueError(
            "KStepAdam must be applied to the variables it was built with. Received: "
            f"'{variable.path}', which is none of them. Make an optimizer for it."
        )


def _mean(variables: list[Any], name: str) -> list[tf.Tensor]:
    tensors = [tf.convert_to_tensor(variable) for variable in variables]
    return engine.all_reduce(tensors, name, average=True)


def _assign(variable: Any, value: tf.Tensor) -> None:
    constraint = variable.constraint
    variable.assign(value if constraint is None else constraint(value))


def _check_keras_options(options: dict[str, Any]) -> None:
    for name in _NOT_DONE:
        if options.get(name):
            raise ValueError(
                f"KStepAdam does not do what `{name}` asks for. Received: "
                f"{name}={options[name]!r}. Leave it out."
            )
    if tf.distribute.has_strategy():
        raise ValueError(
            "KStepAdam merges ranks of `horovodrun`, not the replicas of a strategy. "
            f"Received: {type(tf.distribute.get_strategy()).__name__}. Make it outside "
            "of `strategy.scope()`."
        )
