"""How packages of Debian are asked for, told by what apt would be told: no network, and no apt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import debian
from tests.debian import DebianError
from tests.softroce.lab import packages
from tests.softroce.lab.cache import OutsideError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LABELLED = "http://m/debian Debian\nhttp://m/security Debian-Security\nhttp://other Ubuntu\n"
UNFETCHED = f"http://m/security-archive {debian.KEYRING}\nhttp://m/debian {debian.KEYRING}\n"


class Apt:
    """What apt says, and what it was asked."""

    def __init__(self, labels: str = LABELLED, keys: str = "") -> None:
        self.asked: list[list[str]] = []
        self._labels, self._keys = labels, keys

    def run(self, words: Sequence[str], _timeout_s: float, cwd: Path | None = None) -> str:
        """In the place of `debian.run`."""
        self.asked.append(list(words))
        if "download" in words:
            assert cwd is not None
            (cwd / f"{words[-1]}_1_amd64.deb").touch()
        if "show" in words:
            return "Package: kernel\nDepends: linux-image-6.1.0-9-amd64 (= 6.1), other\n"
        return self._labels if "$(REPO_URI) $(LABEL)" in words else self._keys


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Apt:
    keyring = tmp_path / "keyring.gpg"
    keyring.touch()
    made = Apt()
    monkeypatch.setattr(debian, "run", made.run)
    monkeypatch.setattr(debian, "KEYRING", str(keyring))
    return made


def test_the_lab_and_everybody_else_ask_the_same_mirror(apt: Apt, tmp_path: Path) -> None:
    main = f"deb [signed-by={tmp_path}/keyring.gpg] http://m/debian bookworm main\n"
    assert debian.sources("bookworm") == main
    secured = main + f"deb [signed-by={tmp_path}/keyring.gpg] http://m/security bookworm-security main\n"
    assert packages.sources(packages.BOOKWORM) == secured
    assert apt.asked


def test_a_machine_that_has_fetched_no_lists_knows_its_mirror_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "run", Apt("", UNFETCHED).run)
    assert debian.mirrors() == {"Debian": "http://m/debian"}
    monkeypatch.setattr(debian, "run", Apt("", "").run)
    with pytest.raises(DebianError, match="knows no Debian mirror"):
        debian.mirrors()
    with pytest.raises(OutsideError, match="the soft-RoCE lab is built from Debian's packages"):
        packages.sources(packages.TRIXIE)


def test_a_package_comes_by_a_state_of_apts_that_is_gone_afterwards(apt: Apt, tmp_path: Path) -> None:
    folder = tmp_path / "debs"
    folder.mkdir()
    packages.download(folder, "linux-image-amd64->", "deb http://m x main\n")
    assert [path.name for path in folder.iterdir()] == ["linux-image-6.1.0-9-amd64_1_amd64.deb"]
    assert all("Dir::Etc::SourceParts=/dev/null" in words for words in apt.asked), "the machine's own lists stay"
    assert ["update" in words for words in apt.asked] == [True, False, False]
