"""What the soft-RoCE lab computes before any guest runs: keys, the kernel inside its package, the first file system."""

from __future__ import annotations

import gzip
import lzma
import struct
from typing import TYPE_CHECKING

import pytest

from tests.softroce.conftest import in_short_form
from tests.softroce.lab.cache import LabError, key_of
from tests.softroce.lab.kernel import Modules, initramfs, vmlinux
from tests.softroce.lab.lab import other_python
from tests.softroce.lab.scene import STEP_S, too_slow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ELF = b"\x7fELF" + bytes(range(256)) * 40


def boot_image(packed: bytes) -> bytes:
    """A bzImage as the kernel's boot protocol describes it: one sector of setup code, then the payload at an offset."""
    image = bytearray(2 * 512 + 64)
    image[0x1F1] = 1
    struct.pack_into("<II", image, 0x248, 64, len(packed))
    return bytes(image) + packed + b"what follows"


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_the_kernel_is_found_in_its_image(pack: Callable[[bytes], bytes]) -> None:
    assert vmlinux(boot_image(pack(ELF))) == ELF


def test_another_packing_is_refused_in_a_sentence() -> None:
    with pytest.raises(LabError, match="xz, gzip and zstd"):
        vmlinux(boot_image(b"LZO!" + ELF))


def test_keys_tell_parts_apart() -> None:
    assert key_of("ab", "c") != key_of("a", "bc")
    assert key_of("ab", b"c") == key_of(b"ab", "c")


def module(depends: str, soft: str = "") -> bytes:
    return b"\x7fELF\0" + f"depends={depends}\0softdep={soft}\0".encode()


@pytest.fixture
def modules(tmp_path: Path) -> Modules:
    base = tmp_path / "6.1.0-1-amd64"
    (base / "kernel/deep").mkdir(parents=True)
    files = {"ext4": module("jbd2,crc16", "pre: crc32c"), "jbd2": module(""), "virtio-blk": module("virtio_ring")}
    files |= {"virtio_pci": module("virtio-ring"), "virtio_ring": module(""), "overlay": module("")}
    files |= {"crc32c_generic": module(""), "crc32c": module("")}
    for name, data in files.items():
        (base / f"kernel/deep/{name}.ko.xz").write_bytes(lzma.compress(data))
    (base / "modules.builtin").write_text("kernel/lib/crc16.ko\n")
    return Modules(base)


def test_modules_come_after_what_they_need(modules: Modules) -> None:
    order = modules.closure(("ext4", "virtio_blk"))
    assert order == ["jbd2", "crc32c", "ext4", "virtio_ring", "virtio_blk"]
    with pytest.raises(LabError, match="no module rdma_rxe"):
        modules.closure(("rdma_rxe",))


def test_the_first_file_system_holds_what_it_should(modules: Modules, tmp_path: Path) -> None:
    (tmp_path / "busybox").write_bytes(b"busybox!")
    archive = initramfs(modules, tmp_path / "busybox", b"#!/bin/busybox sh\n")
    files: dict[str, bytes] = {}
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * place : at + 14 + 8 * place], 16) for place in range(13)]
        size, name_bytes = fields[6], fields[11]
        name = archive[at + 110 : at + 110 + name_bytes - 1].decode()
        data_at = at + (110 + name_bytes + 3) // 4 * 4
        if name == "TRAILER!!!":
            break
        files[name] = archive[data_at : data_at + size]
        at = data_at + (size + 3) // 4 * 4
    assert files["init"] == b"#!/bin/busybox sh\n"
    assert files["bin/busybox"] == b"busybox!"
    order = files["m/order"].decode().split()
    assert order[-1] == "ext4.ko"
    assert {f"m/{name}" for name in order} <= set(files)


def test_the_short_form_is_short() -> None:
    assert in_short_form("test_many_at_once[events2-async]")
    assert not in_short_form("test_many_at_once[events2-blocking]")
    assert not in_short_form("test_killed_after_send[events2-blocking-300000-die_reply]")
    assert not in_short_form("test_each_byte[events2-async]")


def test_packages_of_another_python_are_not_given_to_guests() -> None:
    assert other_python((3, 11)) == ""
    assert "of Python 3.13: take .venv away, then run `make demo PYTHON=python3.11 ARGS=--lab`" in other_python((3, 13))


def test_a_round_that_would_not_end_is_refused_with_what_to_do() -> None:
    assert not too_slow(STEP_S, "there is no /dev/shm")
    told = too_slow(60.0, "there is no /dev/shm")
    for word in ("60 s", "75 minutes", "KVM", "RDMA card", "there is no /dev/shm"):
        assert word in told
