"""Two decorators for all kernels: numba, no interpreter lock, and a disk cache that cannot go stale.

numba's own cache looks at the file of the outermost function only; a kernel inlined from another file may change unseen
and the old machine code would run on. Here the cache folder's name is a digest of all kernel sources, so any change
opens a fresh one. Where no folder can be written the kernels are compiled anew in each process. Next: walk.py.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

try:
    import numba
except ImportError as missing:
    raise ImportError("route_plan needs numba: install it with `pip install numba`") from missing

F = TypeVar("F", bound=Callable[..., Any])


@cache
def cache_folder() -> str:
    """Return where compiled kernels are kept (under $NUMBA_CACHE_DIR, $XDG_CACHE_HOME or ~/.cache), or nothing."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    named = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(named) if named else Path.home() / ".cache"
        folder = base / "overspill-route-plan" / digest.hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        # Asked here, for numba itself would go on to a folder that other sources share.
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return ""


def jit(function: F) -> F:
    """Compile at the first call; for functions that allocate arrays. Numbers stay exact (no fast-math)."""
    return _compiled(function)


def kernel(function: F) -> F:
    """Compile at the first call; for functions that allocate nothing.

    numba counts references to every array at every call, with atomic operations that cost more than the arithmetic here
    (four times the whole insertion, measured). `_nrt=False` leaves its run-time library out, counting with it.
    """
    return _compiled(function, nrt=False)


def kernel_inlined(function: F) -> F:
    """Compile into each caller; for the few lines that run millions of times."""
    return _compiled(function, nrt=False, inlined=True)


def _compiled(function: F, nrt: bool = True, inlined: bool = False) -> F:
    folder, config, njit = cache_folder(), cast("Any", numba.config), cast("Any", numba.njit)
    if not folder:
        return cast("F", njit(nogil=True, forceinline=inlined, _nrt=nrt)(function))
    kept = config.CACHE_DIR
    # numba reads the folder at decoration time only, so the setting is lent for that moment.
    config.CACHE_DIR = folder
    try:
        return cast("F", njit(nogil=True, forceinline=inlined, _nrt=nrt, cache=True)(function))
    finally:
        config.CACHE_DIR = kept
