"""The checkout keeps the house rules, and each rule can fail.

It reads files and imports none of the packages. The rules are in `tests/house.py`.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import house

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
CODE = (*house.ROOMS, "examples", "tests")
PROSE = ("docs", "docker", *CODE)
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
    ".pbtxt",
    ".cu",
    ".sh",
    ".html",
    ".service",
    ".ini",
    ".json",
}

# Put together here, so that this file does not hold what it looks for.
FORBIDDEN = re.compile("|".join(["/wo" + "rk/", r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b", r"\bXX" + r"X\b"]))


def _walk(folders: tuple[str, ...], suffixes: set[str]) -> Iterator[Path]:
    for path in sorted(ROOT.iterdir()):
        if path.is_file() and (path.suffix in suffixes):
            yield path
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
                yield path


@cache
def _sources() -> tuple[house.Source, ...]:
    return tuple(
        house.Source.of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in _walk(CODE, {".py"})
    )


def _rooms() -> list[str]:
    return [room for room in house.ROOMS if (ROOT / room / "__init__.py").exists()]


@pytest.mark.parametrize("rule", house.RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Callable[[house.Source], Iterator[str]]) -> None:
    breaches = [breach for source in _sources() for breach in rule(source)]
    assert not breaches, "\n" + "\n".join(breaches)


def test_files_named_in_docstrings_exist() -> None:
    missing = [
        f"{source.path} names {path}"
        for source in _sources()
        for path in house.docstring_paths(source)
        if not (ROOT / path).exists() and not (ROOT / source.path).parent.joinpath(path).exists()
    ]
    assert not missing, "\n" + "\n".join(missing)


def test_no_forbidden_words() -> None:
    """Paths of one machine and notes to self do not belong in a product."""
    found = []
    for path in [*_walk(PROSE, TEXT_SUFFIXES), ROOT / "Makefile", ROOT / ".ci" / "run"]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n" + "\n".join(found)


def test_files_named_in_prose_exist() -> None:
    known = "|".join([*CODE, "docs", "docker"])
    missing = [
        f"{path.relative_to(ROOT)} names {named}"
        for path in _walk(PROSE, {".md"})
        for named in re.findall(rf"`((?:{known})/[\w./-]+\.(?:py|md|toml|cu))`", path.read_text(encoding="utf-8"))
        if "NAME" not in named and not (ROOT / named).exists()
    ]
    assert not missing, "\n" + "\n".join(missing)


def test_links_in_prose_resolve() -> None:
    broken = []
    for path in _walk(PROSE, {".md"}):
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:|#", target):
                continue
            if not (path.parent / target.partition("#")[0]).exists():
                broken.append(f"{path.relative_to(ROOT)} links to {target}")
    assert not broken, "\n" + "\n".join(broken)


def test_every_room_is_known_to_the_checkers() -> None:
    """A room that a checker does not know would go unchecked without a word."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    linted = contracts["importlinter"]["root_packages"].split()
    typed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["packages"]
    base = contracts["importlinter:contract:base"]["forbidden_modules"].split()
    face = contracts["importlinter:contract:examples-import"]["forbidden_modules"].split()
    wires = [
        f"fabric.{name}"
        for name in ("link", "local", "rdma", "rpc_fallback", "sim")
        if (ROOT / "fabric" / name / "__init__.py").exists() or (ROOT / "fabric" / f"{name}.py").exists()
    ]
    rooms = _rooms()
    assert [room for room in rooms if room not in linted] == [], "add the room to root_packages in .importlinter"
    assert [room for room in rooms if room not in typed] == [], "add the room to packages of [tool.mypy]"
    assert [wire for wire in wires if wire not in base] == [], "add the wire to the contract `base` in .importlinter"
    hidden = [room for room in rooms if room != "overspill" and room not in face]
    assert hidden == [], "add the room to the contract `examples-import` in .importlinter"
    assert [room for room in rooms if not (ROOT / room / "py.typed").exists()] == [], "give the room a py.typed"


DOC = '"""Why."""\n'
SAMPLES = {
    "long file": ("sizes", "fabric/a.py", DOC + "x = 1\n" * 300),
    "long line": ("sizes", "fabric/a.py", DOC + "x = '" + "y" * 120 + "'\n"),
    "long function": ("sizes", "fabric/a.py", DOC + "def f():\n" + "    x = 1\n" * 60),
    "no docstring": ("module_docstring", "fabric/a.py", "x = 1\n"),
    "print": ("prints", "fabric/a.py", DOC + "print(1)\n"),
    "bare dataclass": ("dataclasses_are_values", "fabric/a.py", DOC + "@dataclass\nclass A:\n    x: int\n"),
    "no slots": ("dataclasses_are_values", "fabric/a.py", DOC + "@dataclass(frozen=True)\nclass A:\n    x: int\n"),
    "not frozen": (
        "dataclasses_are_values",
        "a.py",
        DOC + "@dataclass(frozen=False, slots=True)\nclass A:\n    x: int\n",
    ),
    "silent except": ("broad_excepts", "fabric/a.py", DOC + "try:\n    f()\nexcept Exception:\n    pass\n"),
    "noqa is no reason": (
        "broad_excepts",
        "a.py",
        DOC + "try:\n    f()\nexcept Exception:  # noqa: BLE001\n    pass\n",
    ),
    "bare except": ("broad_excepts", "fabric/a.py", DOC + "try:\n    f()\nexcept:\n    pass\n"),
    "pure clock": ("purity", "fabric/a.py", DOC + house.PURE + "\nimport time\n"),
    "pure clock, late": ("purity", "fabric/a.py", DOC + house.PURE + "\ndef f():\n    from time import monotonic\n"),
    "pure, misspelt": ("purity", "fabric/a.py", DOC + "# Pure file.\n"),
    "pure, too low": ("purity", "fabric/a.py", DOC + "x = 1\n" + house.PURE + "\n"),
    "grpc astray": ("homes", "router/a.py", DOC + "import grpc\n"),
    "torch astray, late": ("homes", "router/a.py", DOC + "def f():\n    import torch\n"),
    "consul too early": ("homes", "discovery/consul.py", DOC + "import consul\n"),
    "homeless": ("homes", "router/a.py", DOC + "import requests\n"),
    "fat sentinel": ("homes", "workers/sentinel.py", DOC + "import numpy\n"),
    "telemetry": ("no_telemetry", "workers/backends/onnxruntime.py", DOC + "def f():\n    import onnxruntime\n"),
    "leak, no reason": ("marked_leaks", "tests/a.py", DOC + "@pytest.mark.leaks\ndef test(): ...\n"),
}


@pytest.mark.parametrize(("rule", "path", "text"), SAMPLES.values(), ids=SAMPLES.keys())
def test_rule_can_fail(rule: str, path: str, text: str) -> None:
    assert list(getattr(house, rule)(house.Source.of(path, text))), text


GOOD = f"""{DOC}{house.PURE}

from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import random

@dataclass(frozen=True, slots=True)
class A:
    x: int

@dataclass
class B:  # mutable: a pool changes as it lends
    x: int

try:
    f()
except Exception as error:  # noqa: BLE001 - a model's own code may raise anything
    pass
"""


@pytest.mark.parametrize("rule", house.RULES, ids=lambda rule: rule.__name__)
def test_rule_passes_good_code(rule: Callable[[house.Source], Iterator[str]]) -> None:
    assert list(rule(house.Source.of("fabric/a.py", GOOD))) == []
