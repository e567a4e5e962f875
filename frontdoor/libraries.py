"""Says what to install where the front door's libraries are missing; a plain install of the fabric lacks them.

This module imports none of them itself. Read `frontdoor/serving.py` next.
"""

from __future__ import annotations

from importlib.util import find_spec

from fabric.errors import MissingDependency

_NEEDED = (("google.protobuf", "protobuf"), ("aiohttp", "aiohttp"))


def check() -> None:
    """Raises MissingDependency unless all is there."""
    missing = " ".join(package for module, package in _NEEDED if not _found(module))
    if missing:
        raise MissingDependency(f"the front door needs {missing}; install it: pip install {missing}")


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the parent, google
        return False
