"""`TrainConfig`: everything that a training run is told, from TOML."""

import dataclasses
import pathlib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from tfctr.config.conversion import build, parse_override
from tfctr.config.sections import (
    DataConfig,
    ModelConfig,
    ProgressiveConfig,
    RunConfig,
    TablesConfig,
)
from tfctr.declaration import FeatureDeclaration


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A training run: the sections of the TOML file.

    Args:
        data: `DataConfig`.
        model: `ModelConfig`.
        tables: `TablesConfig`.
        run: `RunConfig`.
        progressive: `ProgressiveConfig`.
        features: List of `FeatureDeclaration`, the entries `[[features]]`: which
            columns of the files the model sees, and as what. Criteo and Avazu have
            their usual ones if there are none.

    Example:

    >>> TrainConfig.from_dict({"model": {"dim": 8}}, ["run.epochs=1"]).model.dim
    8
    """

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    tables: TablesConfig = TablesConfig()
    run: RunConfig = RunConfig()
    progressive: ProgressiveConfig = ProgressiveConfig()
    features: tuple[FeatureDeclaration, ...] = ()

    @classmethod
    def load(cls, path: str, overrides: Iterable[str] = ()) -> "TrainConfig":
        """Reads a TOML file.

        Args:
            path: String.
            overrides: Strings `section.key=value`, which win over the file.

        Raises:
            ValueError: If the file or an override cannot be read, or names what does
                not exist.
        """
        file = pathlib.Path(path)
        if not file.is_file():
            raise ValueError(
                f"The configuration must be a TOML file. Received: {path}, which is no "
                "file. Examples are in the folder examples/."
            )
        try:
            sections = tomllib.loads(file.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}.") from error
        return cls.from_dict(sections, overrides)

    @classmethod
    def from_dict(
        cls, sections: Mapping[str, Any], overrides: Iterable[str] = ()
    ) -> "TrainConfig":
        """Makes a config from nested dicts; see `load`."""
        merged = {
            name: dict(section) if isinstance(section, Mapping) else section
            for name, section in sections.items()
        }
        for override in overrides:
            name, key, value = parse_override(override)
            section = merged.setdefault(name, {})
            if isinstance(section, dict):  # If it is none, `build` says so.
                section[key] = value
        return build(cls, merged)

    def to_dict(self) -> dict[str, Any]:
        """Returns nested dicts from which `from_dict` makes an equal config."""
        return dataclasses.asdict(self)
