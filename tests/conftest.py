"""What every test gets: stages, leak checks, runtime folders of its own, and the data folder.

No test may touch the user's runtime folder, or leave anything behind: a leak fails the test that made it, by name.
The parts are in `tests/stages.py` and `tests/leaks.py`.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import leaks
from tests.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parent.parent
_BASE = pytest.StashKey[Path]()
_INTERRUPTS = pytest.StashKey["Interrupts"]()


class Interrupts:  # mutable: nothing happened yet, or it did
    """Whether somebody ended the run in the middle of a test."""

    def __init__(self) -> None:
        self.seen = False

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C. What comes now is the end of the fixtures, then the summary."""
        self.seen = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --resume, which `make test-long` uses."""
    parser.addoption(
        "--resume", action="store_true", help="leave out test files that an earlier run of this tree finished"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the stages; sends runtime and temporary files of tests and their children to folders we can watch."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts us in the background has us ignore it, and so our children, who are to be interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Stages(_ROOT, bool(config.getoption("--resume"))), "overspill-stages")
    config.stash[_INTERRUPTS] = interrupts = Interrupts()
    config.pluginmanager.register(interrupts, "overspill-interrupts")
    # ONNX Runtime's own switch: from its import on it would report to its makers, and hold a database open to do so.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # pytest keeps the last tmp_path folders for reading after a failure: those stay where they always are.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    # Short, because the path of a Unix socket has 107 bytes at most (unix(7)).
    base = Path(tempfile.mkdtemp(prefix="osp-"))
    config.stash[_BASE] = base
    for variable, name in (("XDG_RUNTIME_DIR", "run"), ("TMPDIR", "tmp")):
        (base / name).mkdir(mode=0o700)
        os.environ[variable] = str(base / name)
    tempfile.tempdir = None  # makes the module read TMPDIR again


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the folders; what a test left in them has been reported by then."""
    if (base := config.stash.get(_BASE, None)) is not None:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a descriptor, thread, task, child or file behind, unless marked `leaks("why")`.

    One that was cut off in its middle leaves what it was at: to fail then would take the place of pytest's own summary.
    """
    marker = request.node.get_closest_marker("leaks")
    if marker is not None:
        if not marker.args:
            pytest.fail('say why: @pytest.mark.leaks("reason")')
        yield
        return
    base = request.config.stash[_BASE]
    folders = (base / "run", base / "tmp")
    before = leaks.take(folders)
    yield
    if request.config.stash[_INTERRUPTS].seen:
        return
    leaked = leaks.wait_none(before, folders)
    if leaked:
        pytest.fail("this test left behind: " + "; ".join(leaked), pytrace=False)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the public data sets: OVERSPILL_DATA, or `shared/data` beside the checkout."""
    named = os.environ.get("OVERSPILL_DATA")
    folder = Path(named) if named else _ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data sets: {folder} is no folder; set OVERSPILL_DATA to the one that has them")
    return folder
