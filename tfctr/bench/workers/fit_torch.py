"""DeepFM in PyTorch on FBGEMM's tables.

FBGEMM's rows are multiples of 4 wide, so the first-order weight cannot have a table of
its own width. It lies in the same row as the vector, which was faster than two tables
(of 16 and of 4 columns). FBGEMM's backward updates the rows; PyTorch's fused Adam
updates the dense layers.
"""

from typing import Any

import torch  # type: ignore[import-not-found]

from tfctr.bench.workers import deep_fm
from tfctr.bench.workers.fbgemm import (
    bag_offsets,
    make_tables,
    table_major,
    versions,
)
from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.options import Case, Options
from tfctr.bench.workload import Workload

# Columns after the vector: the first-order weight, and what fills up the multiple of 4.
ROW_PADDING = 4


class DeepFM(torch.nn.Module):
    """The DeepFM of the benchmark on FBGEMM's tables."""

    def __init__(self, workload: Workload, optimizer: str) -> None:
        super().__init__()
        self.dim = workload.dim
        self.row_width = workload.dim + ROW_PADDING
        self.rows = make_tables(workload, optimizer, self.row_width)
        self.linear = torch.nn.Linear(deep_fm.NUM_DENSE, 1)
        width = workload.num_fields * workload.dim + deep_fm.NUM_DENSE
        layers: list[Any] = []
        for units in deep_fm.HIDDEN_UNITS:
            layers += [torch.nn.Linear(width, units), torch.nn.ReLU()]
            width = units
        self.mlp = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))

    def forward(self, ids: Any, offsets: Any, dense: Any) -> Any:
        rows = self.rows(ids, offsets).view(len(dense), -1, self.row_width)
        vectors = rows[:, :, : self.dim]
        first_order = rows[:, :, self.dim].sum(1) + self.linear(dense)[:, 0]
        second_order = 0.5 * (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1)
        deep = self.mlp(torch.cat([vectors.flatten(1), dense], dim=1))[:, 0]
        return first_order + second_order + deep


def make_step(case: Case, batches: int) -> Step:
    workload = case.workload
    model = DeepFM(workload, case.optimizer)
    dense_weights = [*model.linear.parameters(), *model.mlp.parameters()]
    dense_optimizer = torch.optim.Adam(
        dense_weights, lr=deep_fm.DENSE_LEARNING_RATE, fused=True
    )
    loss = torch.nn.BCEWithLogitsLoss()
    ids, offsets = table_major(workload), bag_offsets(workload)
    dense = torch.from_numpy(workload.dense_features(deep_fm.NUM_DENSE))
    clicks = torch.from_numpy(workload.labels())

    def train(batch: int) -> None:
        dense_optimizer.zero_grad()
        logits = model(ids[batch], offsets, dense[batch])
        loss(logits, clicks[batch]).backward()
        dense_optimizer.step()

    def step(i: int) -> None:
        for batch in range(i * batches, (i + 1) * batches):
            train(batch % workload.num_batches)

    return step


def open_cases(options: Options) -> Cases:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return Cases(
        steps={
            case.name: make_step(case, options.batches_per_step)
            for case in options.cases()
        },
        versions=versions(),
        warm_up=1,
    )
