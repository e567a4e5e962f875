"""Refuses to start beside a foreign package that carries the name of one of our rooms.

PyPI has other packages called `fabric`, `router`, `discovery` and more. If one of them stood first on `sys.path`, our
own imports would fail deep inside with a name the user never heard of; if one were installed over ours, its files would
be run as ours. So `import overspill` looks before it imports anything else. This module never imports a room, never
changes `sys.path`, and uses the standard library only. Read `overspill/__init__.py` next.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

ROOMS = ("fabric", "discovery", "router", "workers", "frontdoor", "drills")
"""The top-level packages of this distribution, besides `overspill` itself."""

_MEND_OVERWRITTEN = "pip install --force-reinstall --no-deps overspill"


def check(root: Path, rooms: tuple[str, ...] = ROOMS) -> None:
    """Raises ImportError, in one sentence, unless each of `rooms` would be imported from the folder `root`.

    `root` holds the package `overspill`: the checkout, or the site-packages folder it was installed in. A room that
    does not stand there is not asked for.
    The error's `name` is the room, its `path` the foreign package's file.
    """
    for room in rooms:
        ours = root / room / "__init__.py"
        if ours.exists():
            _check_first_on_path(room, ours)
    _check_not_installed_over(root, rooms)


def _check_first_on_path(room: str, ours: Path) -> None:
    """The name must lead to our file, not to one that stands before it on `sys.path`."""
    spec = find_spec(room)
    found = Path(spec.origin) if spec is not None and spec.origin else None
    if found is not None and found.resolve() == ours.resolve():
        return
    if found is None:  # nothing, or a folder without __init__.py, which Python takes only if there is nothing better
        raise ImportError(
            f"Overspill's own package '{room}' at {ours} is not on Python's path: "
            f"add {ours.parent.parent} to PYTHONPATH",
            name=room,
            path=str(ours),
        )
    name = _distribution_of(found.parent.parent, room) if found.name == "__init__.py" else None
    if name is None:
        mend = f"take {found.parent if found.name == '__init__.py' else found} off PYTHONPATH or rename it"
    else:
        mend = f"run `pip uninstall {name}`"
    raise ImportError(
        f"Overspill needs its own package '{room}' at {ours}, but a foreign package '{room}' stands before it at "
        f"{found}: {mend}, or install overspill in a virtual environment of its own",
        name=room,
        path=str(found),
    )


def _check_not_installed_over(root: Path, rooms: tuple[str, ...]) -> None:
    """In one site-packages folder two distributions can write the same file: whichever came last won.

    The pip that installed us left the hash of each of our files in RECORD. A checkout has no RECORD and needs none:
    nothing is installed into it.
    """
    record = next(root.glob("overspill-*.dist-info/RECORD"), None)
    if record is None:
        return
    lines = record.read_text(encoding="utf-8").splitlines()
    for room in rooms:
        line = next((text for text in lines if text.startswith(f"{room}/__init__.py,")), None)
        if line is None:
            continue
        ours = root / room / "__init__.py"
        # A neighbour whose file ours replaced shows by its folder's name; all RECORDs are read on failure only.
        neighbour = next(root.glob(f"{room}-*.dist-info"), None)
        if neighbour is None and ours.exists() and line.split(",")[1] == _record_hash(ours):
            continue
        name = _distribution_of(root, room)
        state = f"is mixed with files of {name}" if name else "was changed" if ours.exists() else "is missing"
        uninstall = f"pip uninstall {name} && " if name else ""
        raise ImportError(
            f"Overspill's package '{room}' at {ours} {state}: run `{uninstall}{_MEND_OVERWRITTEN}`, "
            "or install overspill in a virtual environment of its own",
            name=room,
            path=str(ours),
        )


def _record_hash(path: Path) -> str:
    """The file's hash as RECORD spells it (Python packaging, "Recording installed projects")."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _distribution_of(site: Path, room: str) -> str | None:
    """What `pip uninstall` calls the foreign package `room` in the folder `site`, or None if pip knows none."""
    for record in sorted(site.glob("*.dist-info/RECORD")):
        name = re.split(r"-\d", record.parent.name, maxsplit=1)[0]
        if name == "overspill":
            continue
        if f"\n{room}/__init__.py," in "\n" + record.read_text(encoding="utf-8", errors="replace"):
            return name
    return None
