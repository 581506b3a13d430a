"""tfctr's sparse step with gradients clipped as CowClip does: most of them."""

from tfctr.bench.workers import tfctr_layer
from tfctr.bench.workers.loop import Cases
from tfctr.bench.workers.options import Options


def open_cases(options: Options) -> Cases:
    return tfctr_layer.open_cases(options, clip={"clip_ratio": 0.3, "clip_floor": 1e-5})
