"""Finding models: versions, broken ones beside good ones, and folders that are no repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fabric.errors import ConfigError
from workers.repository import facts_of, read_repository

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""


def add(folder: Path, name: str, config: str | bytes | None, versions: tuple[str, ...] = ("1",)) -> None:
    (folder / name).mkdir()
    for version in versions:
        (folder / name / version).mkdir()
    if config is not None:
        (folder / name / "config.pbtxt").write_bytes(config if isinstance(config, bytes) else config.encode())


def test_the_highest_number_is_served(tmp_path: Path) -> None:
    add(tmp_path, "m", CONFIG, ("2", "10", "9", "notes", "007"))
    (entry,) = read_repository(tmp_path)
    assert entry.config is not None
    assert (entry.version, entry.config.path) == ("10", str(tmp_path / "m" / "10"))


def test_one_broken_model_stops_no_other(tmp_path: Path) -> None:
    add(tmp_path, "good", CONFIG)
    add(tmp_path, "no_config", None)
    add(tmp_path, "no_version", CONFIG, ())
    add(tmp_path, "garbled", b"\xff\xfe")
    add(tmp_path, "huge", b"#" * (2 << 20))
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "a_file").write_text("no model")
    entries = {entry.name: entry for entry in read_repository(tmp_path)}
    assert {name for name, entry in entries.items() if not entry.refused} == {"good"}
    assert "every model needs one" in entries["no_config"].refused
    assert "no version folder" in entries["no_version"].refused
    assert "no UTF-8" in entries["garbled"].refused
    assert "over" in entries["huge"].refused
    facts = facts_of(entries["no_config"])
    assert facts.refused
    assert not facts.inputs


def test_facts_of_a_good_model(tmp_path: Path) -> None:
    add(tmp_path, "good", CONFIG)
    (entry,) = read_repository(tmp_path)
    facts = facts_of(entry, "not today")
    assert [(tensor.name, tensor.dtype, tensor.dims) for tensor in facts.inputs] == [("x", "FP32", (1,))]
    assert facts.refused == "not today"


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_no_repository_is_a_config_error(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "models"
    if kind == "file":
        folder.write_text("")
    elif kind == "empty":
        folder.mkdir()
    with pytest.raises(ConfigError):
        read_repository(folder)


def test_the_folder_of_one_model_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    add(tmp_path / "models", "good", CONFIG)
    with pytest.raises(ConfigError, match="give the parent folder") as caught:
        read_repository(tmp_path / "models" / "good")
    assert str(tmp_path / "models") in str(caught.value)
