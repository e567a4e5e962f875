"""Finds the models of a repository in Triton's layout: `NAME/config.pbtxt` and `NAME/<version>/...`.

The highest numeric version is served. A model that cannot be served is told with its reason and stops no other; only a
repository that cannot be read is an error. Nothing is loaded here: executors do that. Read `workers/node.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from discovery.instance import ModelFacts, TensorFacts
from fabric.errors import ConfigError, ModelBroken
from workers.modelconfig import ModelConfig, TensorDecl, read_config

MODELS_MAX = 1024
CONFIG_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of a repository: its configuration, or why it cannot be served (then `config` is None)."""

    name: str
    version: str
    config: ModelConfig | None
    refused: str = ""


def read_repository(folder: str | Path) -> tuple[ModelEntry, ...]:
    """Reads every model's configuration. Raises ConfigError when the folder cannot be read or holds no model."""
    try:
        # `__pycache__` and hidden folders are no models.
        found = sorted(
            each for each in Path(folder).iterdir() if each.is_dir() and not each.name.startswith((".", "__"))
        )
    except OSError as error:
        raise ConfigError(
            f"the model repository {str(folder)!r} cannot be read ({error.strerror}); give a folder of models"
        ) from None
    if (Path(folder) / "config.pbtxt").is_file():
        raise ConfigError(
            f"{str(folder)!r} is the folder of one model, not of models; give the parent folder,"
            f" {str(Path(folder).resolve().parent)!r}"
        )
    if not found:
        raise ConfigError(
            f"the model repository {str(folder)!r} holds no model; put NAME/config.pbtxt and NAME/1/ into it"
        )
    if len(found) > MODELS_MAX:
        raise ConfigError(
            f"the model repository {str(folder)!r} holds {len(found)} models; at most {MODELS_MAX} fit a node"
        )
    return tuple(_entry(folder) for folder in found)


def _entry(folder: Path) -> ModelEntry:
    version = _highest_version(folder)
    try:
        return ModelEntry(folder.name, version, _read_model(folder, version))
    except ModelBroken as error:
        return ModelEntry(folder.name, version, None, str(error))


def _highest_version(entry: Path) -> str:
    try:
        numbers = [
            int(sub.name) for sub in entry.iterdir() if sub.is_dir() and sub.name.isascii() and sub.name.isdigit()
        ]
    except OSError:
        return ""
    return str(max(numbers)) if numbers and max(numbers) > 0 else ""


def _read_model(entry: Path, version: str) -> ModelConfig:
    config = entry / "config.pbtxt"
    if not version:
        raise ModelBroken(f"{entry} has no version folder; put the model's files into {entry}/1")
    try:
        with config.open("rb") as file:
            raw = file.read(CONFIG_BYTES_MAX + 1)
        text = raw.decode()
    except OSError as error:
        raise ModelBroken(f"{config} cannot be read ({error.strerror}); every model needs one") from None
    except UnicodeDecodeError:
        raise ModelBroken(f"{config} is no UTF-8 text; write it again as plain text") from None
    if len(raw) > CONFIG_BYTES_MAX:
        raise ModelBroken(f"{config} is over {CONFIG_BYTES_MAX} bytes, which is no configuration; check the file")
    # Leading zeros are allowed in the folder's name, so it is looked up by number.
    path = next(sub for sub in entry.iterdir() if sub.name.isdigit() and int(sub.name) == int(version))
    return read_config(text, str(config), entry.name, version, str(path.resolve()))


def facts_of(entry: ModelEntry, refused: str = "") -> ModelFacts:
    """What discovery says of a model; `refused` is why executors could not load it."""
    config = entry.config
    if config is None:
        return ModelFacts(entry.name, entry.version, idempotent=False, inputs=(), outputs=(), refused=entry.refused)
    tensors = _facts(config.inputs), _facts(config.outputs)
    return ModelFacts(config.name, config.version, config.idempotent, *tensors, refused)


def _facts(declared: tuple[TensorDecl, ...]) -> tuple[TensorFacts, ...]:
    return tuple(TensorFacts(decl.name, decl.dtype, decl.dims) for decl in declared)
