"""Builds the images of `docker/` in the engine, as its page says, from what git tracks, without a network.

What was built before from the same files is not built again: the engine knows. Read `docker/Dockerfile` next.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.consul_binary import find as find_consul
from tests.debian import DebianError, cache_folder
from tests.integration.engine.packages import ROOT, base_image, wheels

if TYPE_CHECKING:
    from tests.integration.engine.daemon import Engine

BASE = "python:3.11-slim-bookworm"
IMAGE = "overspill:test"
CONSUL = "overspill-consul:test"
KEEP = "4GB"
"""What the engine may remember of earlier builds: about four sets of libraries."""
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


def build(engine: Engine) -> None:
    """Makes `IMAGE` and `CONSUL`. Raises DebianError for what cannot be fetched, EngineError for a build that fails."""
    _import_base(engine)
    with tempfile.TemporaryDirectory(prefix="context-", dir=cache_folder("containers")) as name:
        context = Path(name)
        consul, why_not = find_consul()
        if not consul:
            raise DebianError(why_not)
        shutil.copy(consul, context / "consul")
        file = Path(__file__).with_name("consul.Dockerfile")
        engine.docker("build", "--quiet", "--network", "none", "-f", str(file), "-t", CONSUL, name)
        (context / "consul").unlink()
        export(context)
        for wheel in wheels().glob("*.whl"):
            os.link(wheel, context / "docker/wheels" / wheel.name)
        words = ["--network", "none", "--build-arg", "PIP_ARGS=--no-index", "-f", f"{name}/docker/Dockerfile"]
        engine.docker("build", "--quiet", *words, "-t", IMAGE, name)
    engine.docker("image", "prune", "--force")
    engine.docker("builder", "prune", "--force", "--keep-storage", KEEP)


def _import_base(engine: Engine) -> None:
    """Once for each base: another import of the same tar would be another image, and all would be built again."""
    tar = base_image(engine.tree)
    label = f"overspill.base={tar.stem}"
    if engine.docker("images", "--quiet", "--filter", f"label={label}", BASE).strip():
        return
    changes = [f"LABEL {label}", f"ENV PATH={_PATH}", 'CMD ["python3"]']
    engine.docker("import", *[word for change in changes for word in ("--change", change)], str(tar), BASE)


def export(folder: Path) -> None:
    """Copies what git tracks or would track, as a checkout has it."""
    words = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, check=True, capture_output=True, timeout=60).stdout
    for name in listed.decode().split("\0"):
        if name and not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
