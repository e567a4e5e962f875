# ruff: noqa: INP001 - a script of the image, which has no package around it
"""Prints what the image installs besides Overspill itself, so that it has a layer of its own in `docker/Dockerfile`.

The names and bounds are those of pyproject.toml, for the extras in the first argument (`consul,onnx`); the versions are
pinned by constraints.txt. It runs before anything is installed, so it needs the standard library only, and it never
installs anything.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The requirements of the build, of a plain install and of `extras`, in the order of the file, each once."""
    parsed = tomllib.loads(pyproject)
    project = parsed["project"]
    optional = project.get("optional-dependencies", {})
    unknown = [extra for extra in extras if extra not in optional]
    if unknown:
        raise SystemExit(f"extra {', '.join(unknown)} is unknown; give some of {', '.join(optional)}")
    found = [*parsed["build-system"]["requires"], *project["dependencies"]]
    for extra in extras:
        found += optional[extra]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    named = [word for word in sys.argv[1].split(",") if word]
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml").read_text(encoding="utf-8"), named)) + "\n")
