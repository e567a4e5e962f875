"""Memory of another process on a fake card: opened on that card while its owner lives, refused in any other form."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from workers.cuda.fake import FakeDevice, make_cards
from workers.cuda.fake_memory import FakeExport
from workers.device import HANDLE_BYTES, DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 16


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FakeDevice]:
    make_cards(str(tmp_path), 2)
    made = FakeDevice(str(tmp_path), 1)
    yield made
    for address in tuple(made._memory._opened):  # a broken context lets go with its process, which is ours here
        made._memory.close(address)


@pytest.fixture
def export() -> Iterator[FakeExport]:
    made = FakeExport.of(1, len(CONTENT))
    made.memory[:] = CONTENT
    yield made
    made.close()


def test_bytes_go_both_ways(device: FakeDevice, export: FakeExport) -> None:
    assert len(export.handle) == HANDLE_BYTES
    at, nbytes = device.open_handle(export.handle)
    assert nbytes == len(CONTENT)
    host = ctypes.create_string_buffer(100)
    device.fetch(at + 5, ctypes.addressof(host), 100)
    assert host.raw == CONTENT[5:105]
    device.store(ctypes.addressof(host), at, 100)
    assert export.memory[:105] == CONTENT[5:105] + CONTENT[100:105]
    device.close_handle(at)
    with pytest.raises(DeviceError):
        device.close_handle(at)


@pytest.mark.parametrize("spoil", ["cut", "foreign", "one bit", "zeros"])
def test_a_handle_that_is_none_is_an_invalid_value(device: FakeDevice, export: FakeExport, spoil: str) -> None:
    handle = {
        "cut": export.handle[:-1],
        "foreign": os.urandom(HANDLE_BYTES),
        "one bit": bytes([*export.handle[:20], export.handle[20] ^ 4, *export.handle[21:]]),
        "zeros": bytes(HANDLE_BYTES),
    }[spoil]
    with pytest.raises(DeviceError) as raised:
        device.open_handle(handle)
    assert raised.value.code == 1
    device.settle()  # the context lives on


def test_another_card_refuses_it(tmp_path: Path, device: FakeDevice, export: FakeExport) -> None:
    with pytest.raises(DeviceError, match="error 1"):
        FakeDevice(str(tmp_path), 0).open_handle(export.handle)
    assert device.open_handle(export.handle)


def test_the_memory_of_a_process_that_ended_cannot_be_opened(device: FakeDevice) -> None:
    code = (
        "import sys; from workers.cuda.fake_memory import FakeExport as E; sys.stdout.buffer.write(E.of(1, 64).handle)"
    )
    handle = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout
    with pytest.raises(DeviceError, match="error 201"):
        device.open_handle(handle)


def test_what_can_be_cut_short_is_not_mapped(device: FakeDevice) -> None:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 64)
        export = FakeExport.of(1, 64)
        os.dup2(fd, export.fd, inheritable=False)
        with pytest.raises(DeviceError, match="error 1"):
            device.open_handle(export.handle)
        export.close()
    finally:
        os.close(fd)


def test_a_place_outside_is_an_illegal_address_for_good(device: FakeDevice, export: FakeExport) -> None:
    at, nbytes = device.open_handle(export.handle)
    host = ctypes.create_string_buffer(64)
    with pytest.raises(DeviceError, match="error 700"):
        device.fetch(at + nbytes - 63, ctypes.addressof(host), 64)
    with pytest.raises(DeviceError, match="error 700"):
        device.settle()
