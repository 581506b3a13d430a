"""What a layer is told to look up: its argument `features`, in one form."""

import collections
import itertools
import re
from collections.abc import Mapping
from typing import Any

from keras_layers.storage.storage import Storage
from keras_layers.table_config import (
    FeatureConfig,
    TableConfig,
    check_combiner,
    check_name,
)

_names: dict[str, Any] = collections.defaultdict(itertools.count)


def named_features(features: Any, combiner: str | None) -> dict[str, FeatureConfig]:
    """Returns a dict of features by name, under the name "" if there is but one.

    Args:
        features: `TableConfig`, `FeatureConfig`, or dict of `FeatureConfig`.
        combiner: String or `None`. Goes with a `TableConfig`.

    Raises:
        TypeError: If `features` are none of these.
        ValueError: If `combiner` or a name is not fit.
    """
    check_combiner(combiner)
    configs = features.values() if isinstance(features, dict) else [features]
    single = (TableConfig, FeatureConfig)
    allowed = FeatureConfig if isinstance(features, dict) else single
    if not configs or not all(isinstance(config, allowed) for config in configs):
        raise TypeError(
            "`features` must be a TableConfig, a FeatureConfig, or a dict of "
            f"FeatureConfig by input name. Received: features={features!r}."
        )
    for name in features if isinstance(features, dict) else ():
        check_name("feature", name)
    if combiner is not None and not isinstance(features, TableConfig):
        raise ValueError(
            "`combiner` goes with a TableConfig. Received: combiner="
            f"{combiner!r} beside a FeatureConfig. Say FeatureConfig(table, "
            f"combiner={combiner!r})."
        )
    if isinstance(features, TableConfig):
        features = FeatureConfig(features, combiner, per_column=combiner is None)
    return {"": features} if isinstance(features, FeatureConfig) else dict(features)


def tables_of(features: Mapping[str, FeatureConfig]) -> list[TableConfig]:
    """Returns the tables that features look into, one of each name."""
    return list(
        {config.table.name: config.table for config in features.values()}.values()
    )


def default_name(features: Mapping[str, FeatureConfig], storage: Storage) -> str:
    """Says in `model.summary()` what the table is: ads_dim16_adagrad_ram."""
    tables = tables_of(features)
    if len(tables) == 1:
        kind = tables[0].sparse_optimizer().kind
        name = f"{tables[0].name}_dim{tables[0].dim}_{kind}_{storage.describe()}"
    else:
        name = f"embedding_{len(tables)}_tables_{storage.describe()}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)  # All that a name scope may have.
    count = next(_names[name])
    return name if count == 0 else f"{name}_{count}"
