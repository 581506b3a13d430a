"""FBGEMM's table batched embeddings on the CPU: fused forward and backward."""

from typing import Any

import fbgemm_gpu  # type: ignore[import-not-found]
import numpy as np
import torch  # type: ignore[import-not-found]
from fbgemm_gpu.split_embedding_configs import (  # type: ignore[import-not-found]
    EmbOptimType,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (  # type: ignore[import-not-found]
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (  # type: ignore[import-not-found]
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

OPTIMIZERS = {
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "fbgemm": fbgemm_gpu.__version__}


def make_tables(workload: Workload, optimizer: str, dim: int) -> Any:
    """One table per field, each id a bag of one."""
    location = (EmbeddingLocation.HOST, ComputeDevice.CPU)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(workload.rows_per_field, dim, *location)] * workload.num_fields,
        optimizer=OPTIMIZERS[optimizer],
        learning_rate=0.01,
        pooling_mode=PoolingMode.SUM,
        stochastic_rounding=False,
        device=torch.device("cpu"),
    )
    tables.init_embedding_weights_uniform(-0.05, 0.05)
    return tables


def table_major(workload: Workload) -> list[Any]:
    """The ids of each batch in FBGEMM's order: all of a field, then the next."""
    return [
        torch.from_numpy(np.ascontiguousarray(batch.T).reshape(-1))
        for batch in workload.batches()
    ]


def bag_offsets(workload: Workload) -> Any:
    return torch.arange(workload.num_fields * workload.batch_size + 1)


def make_step(workload: Workload, optimizer: str) -> Step:
    tables = make_tables(workload, optimizer, workload.dim)
    ids, offsets = table_major(workload), bag_offsets(workload)
    gradient = torch.from_numpy(workload.gradient().reshape(workload.batch_size, -1))

    def step(i: int) -> None:
        tables(ids[i % len(ids)], offsets).backward(gradient)

    return step


def open_cases(options: Options) -> Cases:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return Cases(
        steps={
            case.name: make_step(case.workload, case.optimizer)
            for case in options.cases()
        },
        versions=versions(),
    )
