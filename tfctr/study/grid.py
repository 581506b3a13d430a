"""The grid of the large-batch study: its cells, and how each is trained."""

import dataclasses

from tfctr.config import TrainConfig

RULES = ("none", "sqrt", "linear", "cowclip")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One training run of a study.

    Args:
        network: String. As `model.name` of the config.
        batch_size: Integer.
        rule: String. By which the config's hyperparameters are scaled to it.
    """

    network: str
    batch_size: int
    rule: str


def scale_config(config: TrainConfig, cell: Cell) -> TrainConfig:
    """Returns the config of one run of a study; see `large_batch`.

    Raises:
        ValueError: If the cell is none of a study of `config`.
    """
    from tfctr.optimizers import Hyperparameters, scale_hyperparameters

    if cell.rule not in RULES:
        raise ValueError(
            f"The rule of a run must be one of {', '.join(RULES)}. "
            f"Received: {cell.rule!r}."
        )
    base = config.run.batch_size
    if cell.batch_size < 1 or cell.batch_size % base:
        raise ValueError(
            f"The batch size of a run must be a multiple of run.batch_size={base}, for "
            "which the learning rates of the config are. Received: "
            f"{cell.batch_size}."
        )
    if not config.tables.clip_ratio:
        raise ValueError(
            "The config of a study must say how the rule 'cowclip' clips. Received: "
            "tables.clip_ratio=0. Set it to 1, as in the paper, and tables.clip_floor."
        )
    if config.model.embedding != "dynamic":
        raise ValueError(
            "The model of a study must have dynamic tables, which can clip. Received: "
            f"model.embedding={config.model.embedding!r}. Set it to 'dynamic'."
        )
    scaled = scale_hyperparameters(
        cell.rule,
        cell.batch_size / base,
        Hyperparameters(
            base,
            config.tables.learning_rate,
            config.run.learning_rate,
            config.tables.l2,
        ),
    )
    clips = cell.rule == "cowclip"
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, name=cell.network),
        tables=dataclasses.replace(
            config.tables,
            learning_rate=scaled.embedding_learning_rate,
            l2=scaled.l2,
            clip_ratio=config.tables.clip_ratio if clips else 0.0,
        ),
        run=dataclasses.replace(
            config.run,
            batch_size=scaled.batch_size,
            learning_rate=scaled.dense_learning_rate,
            warmup_epochs=config.run.warmup_epochs if clips else 0.0,
        ),
    )
