"""A guest's memory at the point where it has booted and imported what is slow to import: two seconds instead of twenty.

Made once for each shape of guest, behind `tests/softroce/lab/stage.py`'s wait: before any share is mounted (QEMU
refuses to save a mounted one) and before the guest has a name or an address. Read `tests/softroce/lab/guest.py` next.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.softroce.lab import qemu
from tests.softroce.lab.cache import LabError, cache_folder, forget_others, key_of, locked

if TYPE_CHECKING:
    from tests.softroce.lab.image import Image

BOOT_S = 240.0
"""Boot and imports take 15 s of emulated CPU; a machine with eight busy neighbours on two cores gives a tenth of it."""
KVM_BOOT_S = 60.0
"""On a CPU of its own it boots in three seconds; where KVM cannot run it, finding out costs this, once."""
NOBODY = ("hubport,hubid=0", "hubport,hubid=1")


def snapshot(image: Image, shape: qemu.Shape) -> Path:
    """The saved memory, made if it is not there. Raises LabError."""
    if qemu.acceleration() != "kvm":
        return _snapshot(image, shape)
    try:
        return _snapshot(image, shape)
    except LabError:
        qemu.distrust_kvm()
        return _snapshot(image, shape)


def _snapshot(image: Image, shape: qemu.Shape) -> Path:
    version = qemu.command(image, shape, Path(), (Path(), Path()), NOBODY)
    with os.popen(f"{qemu.QEMU} --version") as said:  # another QEMU may lay out its state otherwise
        key = key_of(image.key, *version, said.readline())
    path = cache_folder() / f"memory-{key}"
    if path.exists():
        path.touch()
        return path
    with locked("snapshot"):
        if not path.exists():
            _make(image, shape, path)
            forget_others(cache_folder(), "memory-", {path.name})
    return path


def _make(image: Image, shape: qemu.Shape, path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="s-", dir=cache_folder()) as name:
        folder = Path(name)
        (folder / "empty").mkdir()
        words = qemu.command(image, shape, folder, (folder / "empty", folder / "empty"), NOBODY)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_ready(folder)
            monitor = qemu.Monitor(folder / "qmp")
            monitor.ask("stop")
            monitor.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
            part = path.with_suffix(".part")
            monitor.ask("migrate", uri=f"exec:cat > {part}")
            _wait_saved(monitor)
            monitor.ask("quit")
            monitor.close()
            process.wait(30)
            part.rename(path)
        except LabError as error:
            paths = [path for name in ("log", "console") if (path := folder / name).exists()]
            said = "\n".join(path.read_text(errors="replace")[-1500:] for path in paths)
            raise LabError(f"{error}\n{said}") from None
        finally:
            process.kill()
            process.wait(30)


def _wait_ready(folder: Path) -> None:
    line = qemu.connect(folder / "go")
    line.settimeout(BOOT_S if qemu.acceleration() == "tcg" else KVM_BOOT_S)
    said = b""
    try:
        while b"SNAP" not in said:
            part = line.recv(100)
            if not part:
                raise LabError("the guest ended before it was ready for its snapshot")
            said += part
    except ConnectionError:
        raise LabError("QEMU ended before its guest was ready") from None
    except TimeoutError:
        raise LabError(f"the guest was not ready within {BOOT_S:.0f} s: the machine is too busy, or it hangs") from None
    finally:
        line.close()
    time.sleep(0.3)  # lets it reach its read


def _wait_saved(monitor: qemu.Monitor) -> None:
    end_s = time.monotonic() + qemu.MONITOR_S
    while time.monotonic() < end_s:
        state = monitor.ask("query-migrate")
        if state.get("status") == "completed":
            return
        if state.get("status") == "failed":
            raise LabError(f"QEMU could not save the guest: {state.get('error-desc', 'no reason given')}")
        time.sleep(0.05)
    raise LabError("QEMU did not finish saving the guest")
