"""tfctr's `DynamicEmbedding` over two tiers; the hot one has a quarter of the rows."""

from keras_layers import HybridStorage
from tfctr.bench.workers import tfctr_layer
from tfctr.bench.workers.loop import Cases
from tfctr.bench.workers.options import Options

HOT_SHARE = 0.25


def open_cases(options: Options) -> Cases:
    num_rows = max(workload.num_rows for workload in options.workloads.values())
    storage = HybridStorage(capacity=round(HOT_SHARE * num_rows))
    return tfctr_layer.open_cases(options, storage)
