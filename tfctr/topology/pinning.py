"""Puts a process where its plan says."""

import contextlib
import os
import pathlib
from dataclasses import dataclass
from typing import Any

from tfctr.topology import memory_policy
from tfctr.topology.cpu_mask import to_list
from tfctr.topology.rank_plan import Plan, RankPlan
from tfctr.topology.visible_gpus import VARIABLE, visible_gpus

_HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
# By which launchers tell a process its number on the machine.
_LOCAL_RANK = ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclass(frozen=True)
class Placement:
    """Where this process has been put.

    Attributes:
        rank: `RankPlan`. The part of the plan that was applied.
        memory_policy: String. That of the plan, or `"first_touch"` where the system
            forbids it: memory then comes from the node of the thread that writes to it
            first, which is the right one as long as threads stay in their CPUs.
        notes: Strings. What was not as planned, and how to mend it.

    Example:

    >>> rank = RankPlan(0, 0, (0, 1), (0, 1), devices=("/CPU:0", "/CPU:1"))
    >>> placement = Placement(rank, "interleave")
    >>> with placement.scope(numa_node=0):
    ...     tf.constant(1).device[-5:]
    'CPU:0'
    """

    rank: RankPlan
    memory_policy: str
    notes: tuple[str, ...] = ()

    @property
    def numa_node(self) -> int | None:
        """What `TieredStorage` takes as `numa_node`: the node that memory comes from.

        `None` for a rank whose memory comes from several nodes in turn: its tables
        spread over them too.
        """
        nodes = self.rank.memory_nodes or (self.rank.numa_node,)
        return nodes[0] if len(nodes) == 1 else None

    def device(self, numa_node: int | None = None) -> str:
        """The `tf.device` string of this rank, in this process.

        A rank with a GPU sees no other, so that TensorFlow calls it `/GPU:0` whatever
        its number in the machine.

        Args:
            numa_node: Integer. For a rank in several nodes, whose logical CPU device is
                meant. It names the place and pins nothing: TensorFlow runs all logical
                CPU devices on one pool of threads. What pins is a rank for each node.

        Raises:
            ValueError: If the rank is not in that node.
        """
        if numa_node is not None and numa_node not in self.rank.numa_nodes:
            raise ValueError(
                f"`numa_node` must be one of {list(self.rank.numa_nodes)}, where rank "
                f"{self.rank.local_rank} is. Received: numa_node={numa_node}."
            )
        if self.rank.gpu is not None:
            return "/GPU:0"
        if numa_node is None or len(self.rank.devices) == 1:
            return self.rank.devices[0]
        return self.rank.devices[self.rank.numa_nodes.index(numa_node)]

    def scope(
        self, numa_node: int | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """The context in which ops run on `device(numa_node)`."""
        import tensorflow as tf

        scope: contextlib.AbstractContextManager[None] = tf.device(
            self.device(numa_node)
        )
        return scope


def apply(plan: Plan, local_rank: int | None = None) -> Placement:
    """Puts this process where the plan says; call it before TensorFlow starts.

    All threads of the process, and those that they start, run on the CPUs of the rank;
    memory that is taken from now on comes from its nodes; TensorFlow gets its thread
    counts, its GPU, and a logical CPU device for each node of a rank in several; and
    what Horovod and NCCL read is in the environment, unless it is set there already.
    `python -m tfctr run` has done all but the logical devices before the program
    starts, and doing it again changes nothing.

    Args:
        plan: The plan.
        local_rank: Integer. The rank of this process among those of this machine.
            `None` means what the launcher says, such as horovodrun.

    Raises:
        RuntimeError: If TensorFlow has started with other threads or devices.
        ValueError: If the plan has no such rank, or its CPUs or GPU are not there.

    Example:

    >>> import tfctr  # doctest: +SKIP
    >>> machine = tfctr.topology.Machine.read()  # doctest: +SKIP
    >>> placement = apply(tfctr.topology.plan(machine, 2))  # doctest: +SKIP
    >>> with placement.scope():  # doctest: +SKIP
    ...     model = build()
    """
    rank = rank_of(plan, local_rank)
    settings = environment(plan, rank)
    # Names other than numbers matter only to a rank with a GPU.
    visible = None if rank.gpu is None else visible_gpus()
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        _configure(rank, visible)
        return pin(rank)
    except (RuntimeError, ValueError):
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        raise


def rank_of(plan: Plan, local_rank: int | None = None) -> RankPlan:
    """The part of a plan for this process."""
    if local_rank is None:
        told = (os.environ[name] for name in _LOCAL_RANK if name in os.environ)
        local_rank = next(map(int, told), 0 if len(plan.ranks) == 1 else None)
    if local_rank is None or not 0 <= local_rank < len(plan.ranks):
        given = "none" if local_rank is None else local_rank
        raise ValueError(
            f"`local_rank` must be one of the {len(plan.ranks)} ranks of the plan. "
            f"Received: {given}. Plan for as many ranks as run on this machine, and "
            "start them by `python -m tfctr run`, or pass the number."
        )
    return plan.ranks[local_rank]


def environment(plan: Plan, rank: RankPlan) -> dict[str, str]:
    """What the environment of a rank must hold.

    Raises:
        ValueError: If it hides the GPU of the rank.
    """
    gpu = "-1" if rank.gpu is None else str(rank.gpu)
    if rank.gpu is not None:
        visible = visible_gpus()
        if visible is not None and rank.gpu not in visible:
            raise ValueError(
                f"{VARIABLE} must leave GPU {gpu}, which the plan gives to rank "
                f"{rank.local_rank}. Received: {VARIABLE}={os.environ[VARIABLE]}. "
                f"Plan among those that it leaves: use_gpus={visible}; or unset it."
            )
    found = dict(setting.split("=", 1) for setting in plan.environment)
    # What somebody has set for Horovod and NCCL is meant.
    found = {
        name: value
        for name, value in found.items()
        if name not in os.environ or name.startswith("CUDA_")
    }
    if rank.shared_gpu:
        # The first rank would take all memory otherwise.
        found["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    return {
        **found,
        VARIABLE: gpu,
        "TF_NUM_INTRAOP_THREADS": str(rank.intra_op_threads),
        "TF_NUM_INTEROP_THREADS": str(rank.inter_op_threads),
    }


def pin(rank: RankPlan) -> Placement:
    """Sets the CPUs of all threads, and where memory comes from."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), rank.cpus)
        except ProcessLookupError:
            continue  # It has ended since.
        except OSError as error:
            raise ValueError(
                f"Rank {rank.local_rank} must be allowed to run on its CPUs "
                f"{to_list(rank.cpus)}. Received: {error.strerror}. Plan anew on this "
                "machine, before anything is pinned."
            ) from error
    policy, notes = rank.memory_policy, []
    try:
        memory_policy.set_policy(policy, rank.memory_nodes or (rank.numa_node,))
    except OSError as error:
        policy = "first_touch"
        notes.append(
            f"memory comes from the node of the thread that touches it first, since "
            f"the system refuses '{rank.memory_policy}' ({error}); a container needs "
            "the capability SYS_NICE for it"
        )
    if _huge_pages_are_off():
        notes.append(
            f"the kernel gives no huge pages: write `madvise` to {_HUGE_PAGES}"
        )
    return Placement(rank, policy, tuple(notes))


def _huge_pages_are_off() -> bool:
    try:
        return "[never]" in _HUGE_PAGES.read_text()
    except OSError:
        return False


def _configure(rank: RankPlan, visible: tuple[int, ...] | None) -> None:
    import tensorflow as tf

    config: Any = tf.config
    try:
        config.threading.set_intra_op_parallelism_threads(rank.intra_op_threads)
        config.threading.set_inter_op_parallelism_threads(rank.inter_op_threads)
        gpus = config.list_physical_devices("GPU")
        if rank.gpu is None:
            config.set_visible_devices([], "GPU")
        elif len(config.get_visible_devices("GPU")) > 1:
            # CUDA had counted them before its variables were set.
            place = rank.gpu if visible is None else visible.index(rank.gpu)
            config.set_visible_devices([gpus[place]], "GPU")
        if rank.gpu is None and len(rank.devices) > 1:
            logical = [config.LogicalDeviceConfiguration() for _ in rank.devices]
            cpu = config.list_physical_devices("CPU")[0]
            config.set_logical_device_configuration(cpu, logical)
    except RuntimeError as error:
        raise RuntimeError(
            "`tfctr.topology.apply` must come before TensorFlow starts, since threads "
            f"and devices are fixed then. TensorFlow said: {error} Call it before the "
            "first tensor, model or dataset, or start the program by `python -m tfctr "
            "run`."
        ) from error
    if rank.gpu is not None and not gpus:
        raise ValueError(
            f"Rank {rank.local_rank} must find GPU {rank.gpu}. Received: a TensorFlow "
            "that sees none. Install its CUDA libraries, or plan with use_gpus=False."
        )
