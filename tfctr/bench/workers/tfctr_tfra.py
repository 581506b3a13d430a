"""tfctr's `DynamicEmbedding` over TFRA's table: the sparse step beside TFRA's own."""

from keras_layers import TfraStorage
from tfctr.bench.workers import tfctr_layer
from tfctr.bench.workers.loop import Cases
from tfctr.bench.workers.options import Options


def open_cases(options: Options) -> Cases:
    # With room for all rows from the start, as TFRA's own layer is given.
    num_rows = max(workload.num_rows for workload in options.workloads.values())
    return tfctr_layer.open_cases(options, TfraStorage(init_size=num_rows))
