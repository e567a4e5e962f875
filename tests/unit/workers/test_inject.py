"""What `--inject` breaks, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fabric.errors import ConfigError
from workers.cuda.fake import FakeDevice, make_cards
from workers.device import DeviceError
from workers.inject import Injection, Injector, read_injections

if TYPE_CHECKING:
    from pathlib import Path


def test_the_words() -> None:
    assert read_injections("") == ()
    assert read_injections("kill@act:at=3, trap:every=10,hang@a:flag=/tmp/x") == (
        Injection("kill", "act", at=3),
        Injection("trap", "", every=10),
        Injection("hang", "a", flag="/tmp/x"),
    )


@pytest.mark.parametrize("text", ["boom:at=1", "kill", "kill:at=0", "kill:at=x", "kill:flag=", "kill:when=1"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="give"):
        read_injections(text)


def injector(tmp_path: Path, text: str, generation: int = 1) -> tuple[Injector, FakeDevice]:
    make_cards(str(tmp_path), 1)
    device = FakeDevice(str(tmp_path), 0)
    return Injector(read_injections(text), generation, device), device


def test_a_fault_comes_with_its_request_and_stays(tmp_path: Path) -> None:
    breaks, device = injector(tmp_path, "illegal_address@act:at=2")
    breaks.before("act")
    breaks.before("other")
    device.settle()
    breaks.before("act")
    for _ in range(2):
        with pytest.raises(DeviceError) as caught:
            device.settle()
        assert caught.value.code == 700


def test_at_is_of_the_first_generation_only(tmp_path: Path) -> None:
    breaks, device = injector(tmp_path, "trap:at=1", generation=2)
    breaks.before("act")
    device.settle()


def test_a_flag_works_once(tmp_path: Path) -> None:
    flag = tmp_path / "now"
    breaks, device = injector(tmp_path, f"oom:flag={flag}")
    breaks.before("act")
    flag.touch()
    with pytest.raises(DeviceError) as caught:
        breaks.before("act")
    assert caught.value.code == 2
    assert not flag.exists()
    breaks.before("act")
    device.settle()  # the context lives on
