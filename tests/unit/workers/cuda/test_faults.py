"""The classes of CUDA errors and Xids, by number."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fabric.errors import ConfigError
from workers.cuda.faults import SHIPPED, CudaClass, XidClass, read_faults

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("code", [100, 214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999])
def test_errors_that_end_a_context(code: int) -> None:
    assert read_faults().of_cuda(code) is CudaClass.FATAL


@pytest.mark.parametrize("code", [1, 2, 98, 209, 701, 712, 713, 900, 901])
def test_errors_that_end_a_request_only(code: int) -> None:
    assert read_faults().of_cuda(code) is CudaClass.REQUEST


@pytest.mark.parametrize(
    ("kind", "xids"),
    [
        (XidClass.RESTART, (13, 31, 43, 45, 68, 94, 109)),
        (XidClass.DRAIN, (48, 64, 74, 79, 95, 119, 120, 140)),
        (XidClass.WARN, (63, 154)),
    ],
)
def test_xids(kind: XidClass, xids: tuple[int, ...]) -> None:
    assert {read_faults().of_xid(xid) for xid in xids} == {kind}


def test_an_unknown_error_is_fatal_and_an_unknown_xid_a_warning() -> None:
    book = read_faults()
    assert book.of_cuda(123456) is CudaClass.FATAL
    assert book.of_xid(123456) is XidClass.WARN
    assert "no known class" in book.name(123456)
    assert "no known class" in book.xid_name(123456)


def test_an_operators_file_wins(tmp_path: Path) -> None:
    facts = json.loads(SHIPPED.read_text())
    facts["version"], facts["xid"]["94"] = 77, ["contained ECC error", "drain"]
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps(facts))
    assert read_faults(str(mine)).of_xid(94) is XidClass.DRAIN
    assert read_faults(str(mine)).version == 77


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 1}',
        '{"version": 1, "cuda": {"x": ["a", "fatal"]}, "xid": {}}',
        '{"version": 1, "cuda": {"1": ["a", "deadly"]}, "xid": {}}',
    ],
)
def test_a_file_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(text)
    with pytest.raises(ConfigError, match="copy"):
        read_faults(str(mine))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_faults(str(tmp_path / "none.json"))
