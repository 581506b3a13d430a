"""Whether a machine or a plan can be, where people may have edited it."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfctr.topology.memory_policy import MODES

if TYPE_CHECKING:
    from tfctr.topology.machine import Machine
    from tfctr.topology.rank_plan import Plan

# Of CPUs, nodes and distances: what Linux keeps in an int.
_MOST = 2**31 - 1


def machine_problems(machine: "Machine") -> Iterator[str]:
    """Yields each value that cannot be, with what it must be."""
    ids = [node.id for node in machine.numa_nodes]
    if not ids or len(set(ids)) < len(ids):
        yield f"numa_nodes with the ids {ids}: at least one, and each once"
    for index, node in enumerate(machine.numa_nodes):
        for value in (node.id, *node.cpus):
            if not 0 <= value <= _MOST:
                yield f"{value} in numa_nodes[{index}]: ids from 0 to {_MOST}"
        if node.memory_bytes < 0:
            yield f"numa_nodes[{index}].memory_bytes={node.memory_bytes}: 0 or more"
        far = node.distances
        if far and not (len(far) == len(ids) and all(0 <= x <= _MOST for x in far)):
            yield (
                f"numa_nodes[{index}].distances={list(far)}: one for each of "
                f"{len(ids)} numa_nodes, none of them negative"
            )
    for name in ("cores", "gpus", "nics", "nvme"):
        for index, part in enumerate(getattr(machine, name)):
            if part.numa_node not in (None, *ids):
                yield (
                    f"{name}[{index}].numa_node={part.numa_node}: null, or of the ids "
                    f"{ids} of numa_nodes"
                )
    for index, cache in enumerate(machine.caches):
        if not cache.cpus:
            yield f"caches[{index}].cpus=[]: at least one"
    quota = machine.cpu_quota
    if quota is not None and not (math.isfinite(quota) and quota > 0):
        yield f"cpu_quota={quota}: null, or a positive number"


def plan_problems(plan: "Plan") -> Iterator[str]:
    """Yields each value that cannot be, with what it must be."""
    for index, rank in enumerate(plan.ranks):
        numbers = {
            "cpus": rank.cpus,
            "memory_nodes": rank.memory_nodes,
            "numa_node": (rank.numa_node,),
        }
        for name, values in numbers.items():
            for value in values:
                if not 0 <= value <= _MOST:
                    yield f"{value} in ranks[{index}].{name}: from 0 to {_MOST}"
        if not rank.cpus:
            yield f"ranks[{index}].cpus=[]: at least one"
        for name in ("intra_op_threads", "inter_op_threads", "store_threads"):
            value = getattr(rank, name)
            if value < 1:
                yield f"ranks[{index}].{name}={value}: 1 or more"
        if rank.memory_policy not in MODES:
            known = ", ".join(map(repr, MODES))
            yield f"ranks[{index}].memory_policy={rank.memory_policy!r}: one of {known}"
    for index, setting in enumerate(plan.environment):
        if not setting.partition("=")[0] or "=" not in setting:
            yield f"environment[{index}]={setting!r}: NAME=VALUE"
