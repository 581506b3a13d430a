"""Where each rank goes, as data."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from tfctr.topology import consistency
from tfctr.topology.plain import from_plain

# By which `python -m tfctr run` hands a plan to its ranks.
VARIABLE = "TFCTR_PLAN"


@dataclass(frozen=True)
class RankPlan:
    """What one rank of a machine gets.

    Attributes:
        local_rank: Integer. Its number among the ranks of this machine.
        numa_node: Integer. The id of the node where it is at home.
        numa_nodes: Integers. All nodes that its CPUs are at home in, its own first.
        cpus: Integers. The hardware threads that its threads run on.
        intra_op_threads: Integer. TensorFlow's threads for the work of one op.
        inter_op_threads: Integer. TensorFlow's threads for ops beside each other.
        store_threads: Integer. The `num_threads` of `TieredStorage`.
        memory_policy: String. `"bind"`: memory comes from `memory_nodes` only;
            `"prefer"`: from elsewhere once they are full; `"interleave"`: from each of
            them in turn.
        memory_nodes: Integers. The ids of the nodes that its memory comes from.
        memory_bytes: Integer. Its part of these nodes; 0 where that is unknown.
        huge_pages: String. `"transparent"`: the arenas of the store ask the kernel for
            huge pages.
        gpu: Integer or `None`. The `Gpu.id` of its GPU, counted among all of the
            machine; `CUDA_VISIBLE_DEVICES` of the rank becomes it.
        shared_gpu: Boolean. Whether other ranks use this GPU too.
        nic: String or `None`. The name of its network interface.
        nvme: String or `None`. The name of its NVMe device.
        ssd: String or `None`. The directory for `TieredStorage`.
        devices: Strings. `/GPU:i` as the machine counts them, which the rank itself
            sees as `/GPU:0` (`Placement.device`), or
            `/CPU:i`, one for each of `numa_nodes`. TensorFlow runs all logical CPU
            devices on one pool of threads, so these name places and pin nothing.

    Example:

    >>> RankPlan(local_rank=0, numa_node=1, numa_nodes=(1,), cpus=(2, 3)).devices
    ('/CPU:0',)
    """

    local_rank: int
    numa_node: int
    numa_nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    intra_op_threads: int = 1
    inter_op_threads: int = 2
    store_threads: int = 1
    memory_policy: str = "prefer"
    memory_nodes: tuple[int, ...] = ()
    memory_bytes: int = 0
    huge_pages: str = "transparent"
    gpu: int | None = None
    shared_gpu: bool = False
    nic: str | None = None
    nvme: str | None = None
    ssd: str | None = None
    devices: tuple[str, ...] = ("/CPU:0",)


@dataclass(frozen=True)
class Plan:
    """Where each rank of a machine goes.

    Attributes:
        ranks: `RankPlan`s, by local rank.
        collectives: String. `"flat"`: one ring or tree over all ranks;
            `"hierarchical"`: first inside each machine, then between machines.
        environment: Strings, `NAME=VALUE`. Settings of Horovod and NCCL for all ranks.

    Example:

    >>> plan = Plan((RankPlan(0, 0, (0,), cpus=(0, 1)),))
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    ranks: tuple[RankPlan, ...]
    collectives: str = "flat"
    environment: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as lists, dicts, strings and numbers, as JSON has them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The plan that `to_dict` has turned into plain values.

        Raises:
            ValueError: If the fields are not those of `to_dict`, or hold what cannot
                be.
        """
        try:
            plan: Self = from_plain(cls, plain)
        except TypeError as error:
            raise ValueError(
                "A plan must have the fields that `Plan.to_dict` gives. "
                f"Received: {error}. Plan anew with this version of tfctr."
            ) from error
        for problem in consistency.plan_problems(plan):
            raise ValueError(
                f"A plan must hold what can be done. Received: {problem}. Correct it, "
                "or plan anew."
            )
        return plan

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that `to_json` has written.

        Raises:
            ValueError: If the text is no JSON or has other fields.
        """
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise ValueError(
                "A plan must be the JSON that `Plan.to_json` gives. "
                f"Received: {text[:40]!r} ({error}). Plan anew."
            ) from error
        return cls.from_dict(plain)

    @classmethod
    def from_environment(cls) -> Self:
        """The plan of the job that `python -m tfctr run` has started.

        Raises:
            ValueError: If this process is no rank of such a job.
        """
        text = os.environ.get(VARIABLE)
        if text is None:
            raise ValueError(
                f"The environment must hold a plan in {VARIABLE}. Received: none. "
                "Start the job by `python -m tfctr run`, or make a plan here: "
                "tfctr.topology.plan(tfctr.topology.Machine.read(), ranks)."
            )
        return cls.from_json(text)
