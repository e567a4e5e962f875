"""Finds the models of a repository in Triton's layout: `NAME/config.pbtxt` and `NAME/<version>/...`.

The highest numeric version is served. A model that cannot be served is told with its reason and stops no other; only a
repository that cannot be read is an error. Nothing is loaded here: executors do that. Read `workers/node.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from discovery.instance import ModelFacts, TensorFacts
from fabric.errors import ConfigError, ModelBroken, UnknownModel
from workers.configjson import tree_of_json
from workers.modelconfig import ModelConfig, TensorDecl, config_of, read_config

MODELS_MAX = 1024
FILES_MAX = 10_000
"""Of one version, whose sizes are added up."""
NAME_BYTES_MAX = 255
"""Of a folder's name, in every file system that matters."""
CONFIG_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a configuration was read from, so that an executor reads the same one whatever became of the file since.
    `where` names it in errors; `text` is in JSON where `is_json` says so, else as in a `config.pbtxt`. `serial` tells
    one load of a model from the next."""

    name: str
    version: str
    path: str
    where: str
    text: str
    is_json: bool
    serial: int = 0

    def read(self) -> ModelConfig:
        """The configuration. Raises ModelBroken."""
        if self.is_json:
            return config_of(tree_of_json(self.text, self.where), self.where, self.name, self.version, self.path)
        return read_config(self.text, self.where, self.name, self.version, self.path)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model of a repository: its configuration and what that was read from, or why it cannot be served (then both
    are None)."""

    name: str
    version: str
    config: ModelConfig | None
    refused: str = ""
    source: ModelSource | None = None
    file_bytes: int = 0
    """What the files of the version take: the least that a model needs which does not say."""


def read_repository(folder: str | Path, *, may_be_empty: bool = False) -> tuple[ModelEntry, ...]:
    """Reads every model's configuration. Raises ConfigError when the folder cannot be read, or holds no model and may
    not be empty."""
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
    if not found and not may_be_empty:
        raise ConfigError(
            f"the model repository {str(folder)!r} holds no model; put NAME/config.pbtxt and NAME/1/ into it"
        )
    if len(found) > MODELS_MAX:
        raise ConfigError(
            f"the model repository {str(folder)!r} holds {len(found)} models; at most {MODELS_MAX} fit a node"
        )
    return tuple(_entry(folder) for folder in found)


def read_model(folder: str | Path, name: str, override: str = "") -> ModelEntry:
    """Reads one model of a repository anew, with a whole configuration in JSON instead of its `config.pbtxt` where one
    is given. Raises UnknownModel where the repository has no such folder."""
    model = Path(folder) / name
    # A name comes from a client: it names a folder in the repository and nothing else.
    plain = name and not name.startswith((".", "__")) and "/" not in name and "\0" not in name
    if not plain or len(name.encode(errors="replace")) > NAME_BYTES_MAX or not model.is_dir():
        there = _near(folder, name)
        raise UnknownModel(f"the model repository of this node has no model {name[:80]!r}; it has {there}")
    return _entry(model, override)


def _near(folder: str | Path, name: str) -> str:
    """The names that one who asked for `name` may have meant, and otherwise the first that are there."""
    try:
        there = sorted(each.name for each in Path(folder).iterdir() if not each.name.startswith((".", "__")))
    except OSError:
        return "none that can be read"
    return ", ".join(get_close_matches(name[:80], there) or there[:8]) or "none"


def _entry(folder: Path, override: str = "") -> ModelEntry:
    version = _highest_version(folder)
    try:
        source = _source(folder, version, override)
        return ModelEntry(folder.name, version, source.read(), source=source, file_bytes=_bytes_of(source.path))
    except ModelBroken as error:
        return ModelEntry(folder.name, version, None, str(error))
    except OSError as error:  # the folder was taken away, or its disk, while we looked
        return ModelEntry(folder.name, version, None, f"{folder} cannot be read ({error.strerror}); look at it")


def _bytes_of(folder: str) -> int:
    files = (file for file in islice(Path(folder).rglob("*"), FILES_MAX) if file.is_file())
    return sum(file.stat().st_size for file in files)


def _highest_version(entry: Path) -> str:
    try:
        numbers = [
            int(sub.name) for sub in entry.iterdir() if sub.is_dir() and sub.name.isascii() and sub.name.isdigit()
        ]
    except OSError:
        return ""
    return str(max(numbers)) if numbers and max(numbers) > 0 else ""


def _source(entry: Path, version: str, override: str) -> ModelSource:
    config = entry / "config.pbtxt"
    if not version:
        raise ModelBroken(f"{entry} has no version folder; put the model's files into {entry}/1")
    # Leading zeros are allowed in the folder's name, so it is looked up by number.
    path = next(sub for sub in entry.iterdir() if sub.name.isdigit() and int(sub.name) == int(version))
    where, text = ("the given configuration", override) if override else (str(config), _read_text(config))
    return ModelSource(entry.name, version, str(path.resolve()), where, text, bool(override))


def _read_text(config: Path) -> str:
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
    return text


def facts_of(entry: ModelEntry, refused: str = "") -> ModelFacts:
    """What discovery says of a model; `refused` is why executors could not load it."""
    config = entry.config
    if config is None:
        return ModelFacts(entry.name, entry.version, idempotent=False, inputs=(), outputs=(), refused=entry.refused)
    tensors = _facts(config.inputs), _facts(config.outputs)
    return ModelFacts(config.name, config.version, config.idempotent, *tensors, refused)


def _facts(declared: tuple[TensorDecl, ...]) -> tuple[TensorFacts, ...]:
    return tuple(TensorFacts(decl.name, decl.dtype, decl.dims) for decl in declared)
