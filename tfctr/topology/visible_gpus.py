"""Which GPUs the environment leaves to this process."""

import itertools
import os

from tfctr.topology.machine import Machine

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> tuple[int, ...] | None:
    """The ids of the GPUs that `CUDA_VISIBLE_DEVICES` leaves, or `None` for all.

    Batch systems and people choose GPUs by it. Its numbers are read as those of
    `nvidia-smi`, in the order of PCI addresses, which `Gpu.id` has. Like CUDA, this
    stops at a number below zero.

    Raises:
        ValueError: If it names GPUs otherwise than by number.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    ids: list[int] = []
    for word in filter(None, text.split(",")):
        try:
            id_ = int(word)
        except ValueError as error:
            raise ValueError(
                f"{VARIABLE} must list GPUs by number, in the order of nvidia-smi, for "
                f"a plan to choose among them. Received: {VARIABLE}={text}. Write "
                "numbers, such as 2,3, or unset it."
            ) from error
        if id_ < 0:
            break
        ids.append(id_)
    return tuple(ids)


def usable_gpus(machine: Machine) -> bool | tuple[int, ...]:
    """What `plan` takes as `use_gpus` for this process on its machine."""
    visible = visible_gpus() if machine.gpus else None
    if visible is None:
        return True
    known = {gpu.id for gpu in machine.gpus}
    # CUDA stops at a number that no GPU has, and so do we.
    left = set(itertools.takewhile(known.__contains__, visible))
    return tuple(gpu.id for gpu in machine.gpus if gpu.id in left)
