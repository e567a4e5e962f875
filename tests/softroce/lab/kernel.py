"""From Debian's kernel package: the uncompressed kernel, the few modules a guest needs, an initramfs of one busybox.

QEMU starts an uncompressed kernel directly (PVH), so no guest code has to unpack it, which emulation would make slow.
Nothing here runs the kernel. Read `tests/softroce/lab/image.py` for what the files are for.
"""

from __future__ import annotations

import lzma
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

from tests.softroce.lab.cache import LabError

BOOT_MODULES = ("virtio_pci", "virtio_blk", "overlay", "crc32c_generic", "ext4")
"""What the initramfs loads to reach the root image."""
LAB_MODULES = ("virtio_net", "virtio_console", "9pnet_virtio", "9p", "rdma_rxe", "ib_uverbs", "rdma_ucm")
"""What a guest loads before its snapshot."""
EXTRA_MODULES = ("dummy", "veth", "sch_netem", "sch_prio", "cls_u32", "cls_basic", "em_u32", "crc32_generic")
"""What tests may load."""


def vmlinux(image: bytes) -> bytes:
    """The ELF file inside a bzImage (offsets: the kernel's x86 boot protocol). Raises LabError."""
    (sectors,) = struct.unpack_from("<B", image, 0x1F1)
    offset, length = struct.unpack_from("<II", image, 0x248)
    packed = image[(sectors + 1) * 512 + offset :][:length]
    if packed.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(packed)
    if packed.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31).decompress(packed)
    if packed.startswith(b"\x28\xb5\x2f\xfd"):  # the size stands behind the stream
        return subprocess.run(["zstd", "-dcq"], input=packed[:-4], capture_output=True, check=True, timeout=60).stdout
    raise LabError("the kernel is packed in a way that the lab does not know: it reads xz, gzip and zstd")


class Modules:
    """The modules of an unpacked kernel package."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.version = base.name
        self._paths: dict[str, Path] = {}
        for path in base.rglob("*.ko*"):
            if found := re.fullmatch(r"(.+)\.ko(\.xz)?", path.name):
                self._paths[_plain(found[1])] = path
        lines = (base / "modules.builtin").read_text().splitlines()
        self._builtin = {_plain(Path(line).name.removesuffix(".ko")) for line in lines}

    def data(self, name: str) -> bytes:
        """The module itself, unpacked."""
        packed = self._paths[name].read_bytes()
        return lzma.decompress(packed) if self._paths[name].suffix == ".xz" else packed

    def closure(self, names: tuple[str, ...]) -> list[str]:
        """`names` and all that they depend on, in the order in which they can be loaded."""
        order: list[str] = []

        def add(name: str, *, needed: bool) -> None:
            name = _plain(name)
            if name in order or name in self._builtin:
                return
            if name not in self._paths:
                if needed:
                    raise LabError(f"the kernel {self.version} has no module {name}: it cannot run the lab")
                return
            for other in _before(self.data(name)):
                add(other, needed=False)
            order.append(name)

        for name in names:
            add(name, needed=True)
        return order

    def copy(self, names: tuple[str, ...], root: Path) -> None:
        """Puts the closure of `names` where the guest's modprobe looks, and the lists that depmod reads."""
        target = root / "lib/modules" / self.version
        (target / "kernel").mkdir(parents=True)
        for name in self.closure(names):
            (target / "kernel" / f"{name}.ko").write_bytes(self.data(name))
        for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
            shutil.copy(self.base / name, target)


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _before(module: bytes) -> list[str]:
    """What a module says it needs loaded before itself (hard and soft)."""
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    names = found[1].decode().split(",") if found else []
    for soft in re.findall(rb"\0softdep=([^\0]*)\0", module):
        _, _, pre = soft.decode().partition("pre:")
        names += pre.partition("post:")[0].split()
    return [name for name in names if name]


def initramfs(modules: Modules, busybox: Path, init: bytes) -> bytes:
    """An archive of busybox, `init` and the boot modules."""
    order = modules.closure(BOOT_MODULES)
    files: list[tuple[str, int, bytes]] = [("m", 0o40755, b"")]
    files += [("bin/busybox", 0o100755, busybox.read_bytes()), ("init", 0o100755, init)]
    files += [(f"m/{name}.ko", 0o100644, modules.data(name)) for name in order]
    files.append(("m/order", 0o100644, "".join(f"{name}.ko\n" for name in order).encode()))
    return archive(files)


def archive(files: list[tuple[str, int, bytes]]) -> bytes:
    """A cpio archive ("newc", as the kernel documents it) of the folders that a first program mounts at, and `files`:
    (name, mode, bytes)."""
    folders = [(name, 0o40755, b"") for name in ("bin", "dev", "proc", "sys", "r", "l", "t")]
    whole = b"".join(_entry(number, *file) for number, file in enumerate([*folders, *files], 1))
    return whole + _entry(0, "TRAILER!!!", 0, b"")


def _entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
