"""A real Consul to test with: what OVERSPILL_CONSUL names, the one on PATH, or the binary from Debian's archive.

Consul is in the main archive of Debian 11, whose package is fetched and checked by apt (`tests/debian.py`), unpacked
beside it and never installed. Where none can be had, the reason is told and the tests that need it are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

from tests.debian import DebianError, cache_folder, fetch, have, locked, unpack

RELEASE = "bullseye"


@cache
def find() -> tuple[str, str]:
    """(path of the binary, nothing) or (nothing, why there is none)."""
    named = os.environ.get("OVERSPILL_CONSUL") or shutil.which("consul")
    if named:
        return named, ""
    try:
        have("apt-get", "dpkg-deb")
        packages = fetch(["consul"], RELEASE)
        home = cache_folder("consul")
        root = home / packages["consul"].stem
        with locked(home / "lock"):
            if not root.is_dir():
                making = home / f"making-{os.getpid()}"
                unpack([packages["consul"]], making)
                making.rename(root)
        binary = str(root / "usr" / "bin" / "consul")
        subprocess.run([binary, "version"], check=True, capture_output=True, timeout=60)
    except (DebianError, OSError, KeyError, subprocess.SubprocessError) as error:
        return "", f"needs Consul: none is on PATH, and none came from Debian's archive ({error})"
    return binary, ""
