"""How ranks sum: settings of Horovod and NCCL that follow from the machine.

Names and meanings: Horovod 0.28 (`horovodrun --help`, its documentation of tensor
fusion and hierarchical allreduce) and the list of environment variables of NCCL.
"""

from collections.abc import Sequence

from tfctr.topology.routes import Route


def choose(
    routes: Sequence[Route], gpus: Sequence[int | None], num_hosts: int
) -> tuple[str, tuple[str, ...]]:
    """`"flat"` or `"hierarchical"`, and the settings that make it so.

    Sums go in two levels where that keeps bytes off the network, which only several
    machines have, and where the level inside is fast: no way between the GPUs of the
    ranks goes through the memory of the host.

    Args:
        routes: Those between all GPUs.
        gpus: The GPU of each rank of this machine.
        num_hosts: How many machines the job has.
    """
    used = set(gpus)
    between = [x for x in routes if x.source in used and x.target in used]
    is_fast = (
        None not in used
        and len(used) == len(gpus) > 1
        and not any(route.through_host for route in between)
    )
    two_levels = num_hosts > 1 and is_fast
    settings = [
        # NCCL inside a machine and MPI between them; without MPI, torus does the same
        # by NCCL alone. Builds without NCCL ignore both.
        f"HOROVOD_HIERARCHICAL_ALLREDUCE={two_levels:d}",
        f"HOROVOD_TORUS_ALLREDUCE={two_levels:d}",
    ]
    if used != {None}:
        # CUDA counts the fastest GPU first otherwise, and the plan by PCI address.
        settings.append("CUDA_DEVICE_ORDER=PCI_BUS_ID")
    if any(route.relays for route in between):
        # NCCL may relay over NVLink; its default, unless somebody has switched it off.
        settings.append("NCCL_NVB_DISABLE=0")
    return "hierarchical" if two_levels else "flat", tuple(settings)
