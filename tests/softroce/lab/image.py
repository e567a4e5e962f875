"""Builds what a guest boots from: kernel, initramfs and root image, keyed by everything that they are made from.

It takes a minute once. A build that fails leaves nothing that a later one would take for whole.
Read `tests/softroce/lab/snapshot.py` next.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests import debian
from tests.softroce.lab import kernel, packages
from tests.softroce.lab.cache import LabError, cache_folder, forget_others, key_of, locked

if TYPE_CHECKING:
    from tests.softroce.lab.packages import Suite

_HERE = Path(__file__).resolve().parent
_PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\nplain:x:1000:1000::/:/bin/false\n"
_GROUP = "root:x:0:\nplain:x:1000:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n10.77.0.1 n0\n10.77.0.2 n1\n10.78.0.1 m0\n10.78.0.2 m1\n"
_USELESS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/perl", "usr/share/perl5")


@dataclass(frozen=True, slots=True)
class Image:
    """A built image."""

    folder: Path
    key: str

    @property
    def kernel(self) -> Path:
        """The uncompressed kernel."""
        return self.folder / "vmlinux"

    @property
    def initrd(self) -> Path:
        """The initramfs."""
        return self.folder / "initrd"

    @property
    def root(self) -> Path:
        """The root file system, read-only."""
        return self.folder / "root.img"


def image_key(suite: Suite = packages.BOOKWORM) -> str:
    """What a build would be called."""
    names = ("image.py", "kernel.py", "packages.py", "guest/init", "guest/boot", "stage.py")
    sources = [*(_HERE / name for name in names), Path(debian.__file__)]
    return key_of(suite.name, *(path.read_bytes() for path in sources), packages.wheel_versions())


def build(suite: Suite = packages.BOOKWORM) -> Image:
    """The image of a release, built if it is not there. Raises LabError, which says what is missing."""
    key = image_key(suite)
    image = Image(cache_folder() / f"image-{key}", key)
    if image.folder.is_dir():
        image.folder.touch()
        return image
    packages.install_tools()
    with locked("build"):
        if not image.folder.is_dir():
            _build(image, suite)
            forget_others(cache_folder(), "image-", {image.folder.name})
    return image


def _build(image: Image, suite: Suite) -> None:
    import os

    if os.geteuid() != 0:
        raise LabError(
            "the soft-RoCE lab's root image is built as root, once: run `python -m tests.softroce.lab build` so"
        )
    with tempfile.TemporaryDirectory(prefix="building-", dir=cache_folder()) as name:
        work = Path(name)
        lines = packages.sources(suite)
        package = packages.kernel_package(work, lines)
        unpacked = work / "kernel"
        unpacked.mkdir()
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as tar:
            # Debian 13 has the modules below usr, Debian 12 has not.
            wanted = ["--wildcards", "./boot*", "*/lib/modules/*"]
            subprocess.run(["tar", "-x", "-C", str(unpacked), *wanted], stdin=tar.stdout, check=True, timeout=200)
        places = [unpacked / "usr/lib/modules", unpacked / "lib/modules"]
        modules = kernel.Modules(next(place for base in places if base.is_dir() for place in base.iterdir()))
        root = packages.root_tree(work, lines, suite)
        packages.wheels(root, suite)
        _finish(root, modules, suite)
        out = work / "out"
        out.mkdir()
        (out / "vmlinux").write_bytes(kernel.vmlinux(next((unpacked / "boot").glob("vmlinuz-*")).read_bytes()))
        busybox = root / "bin/busybox"
        init = (_HERE / "guest/init").read_bytes()
        (out / "initrd").write_bytes(kernel.initramfs(modules, busybox, init))
        used = sum(path.lstat().st_size for path in root.rglob("*"))
        size_mb = used * 13 // 10 // (1 << 20) + 48  # blocks of 4 KiB, inodes and directories come on top
        options = ["-q", "-t", "ext4", "-O", "^has_journal,^metadata_csum", "-m", "0", "-d", str(root)]
        packages.run(["mke2fs", *options, str(out / "root.img"), f"{size_mb}M"], 200.0)
        out.rename(image.folder)


def _finish(root: Path, modules: kernel.Modules, suite: Suite) -> None:
    """What the packages' own scripts would have done, as far as a guest needs it, and its programs."""
    for name in _USELESS:
        shutil.rmtree(root / name, ignore_errors=True)
    shutil.rmtree(root / "var/lib/apt", ignore_errors=True)
    for name in ("lab", "job", "src", "site", "l"):
        (root / name).mkdir(exist_ok=True)
    for name, text in (("passwd", _PASSWD), ("group", _GROUP), ("hosts", _HOSTS)):
        (root / "etc" / name).write_text(text)
    boot = (_HERE / "guest/boot").read_text().replace("LAB_MODULES", " ".join(kernel.LAB_MODULES))
    (root / "lab/boot").write_text(boot)
    (root / "lab/boot").chmod(0o755)
    shutil.copy(_HERE / "stage.py", root / "lab/stage.py")
    modules.copy((*kernel.BOOT_MODULES, *kernel.LAB_MODULES, *kernel.EXTRA_MODULES), root)
    packages.run(["chroot", str(root), "ldconfig"], 60.0)
    packages.run(["chroot", str(root), "depmod", modules.version], 60.0)
    compiled = [
        "-m",
        "compileall",
        "-q",
        "-j2",
        "/usr/lib/python3",
        f"/usr/lib/python{suite.python}",
        "/usr/local/lib",
    ]
    words = ["chroot", str(root), "env", "-u", "PYTHONDONTWRITEBYTECODE", "python3", *compiled]
    # A package may ship a file that does not compile (lib2to3's own test data); the rest is compiled all the same.
    subprocess.run(words, timeout=300, capture_output=True, check=False)
