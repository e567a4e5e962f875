"""Commands that are given something wrong: the exit code that `overspill/cli.py` promises, and one line that helps."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

from overspill.cli import main
from tests.integration.bad_models import write_broken
from tests.integration.bad_node import ROOT, NodeProcess, collect, command, copy_models, wait_until
from tests.integration.bad_ways import check_sentence
from tests.integration.fault_bench import noted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

X = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Routers that were closed are gone before the look for leaks."""
    yield from collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    copy_models(folder / "models", "act", "double", "text")
    write_broken(folder / "models")
    np.savez(folder / "in.npz", x=X)
    return folder


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[NodeProcess]:
    with NodeProcess(folder, f"dir:{folder / 'registry'}", folder / "models") as started:
        started.wait_ready()
        yield started


DOCTOR: dict[str, tuple[tuple[str, ...], str]] = {
    "registry that is not there": (("--registry", "dir:{tmp}/none"), "registry"),
    "registry without a node": (("--registry", "dir:{tmp}"), "start one with"),
    "registry that is none": (("--registry", "what"), "give dir:PATH"),
    "models that are not there": (("--models", "{tmp}/none"), "give a folder of models"),
    "node that does not answer": (("--registry", "static:127.0.0.1:1"), "does not answer (Connection refused);"),
}


@pytest.mark.parametrize("name", DOCTOR)
def test_doctor_says_what_is_wrong(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, told = DOCTOR[name]
    assert main(["doctor", *(word.format(tmp=tmp_path) for word in words)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("broken") and told in line]
    check_sentence(line.partition(": ")[2])


def _npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **{name: np.array(value, dtype=object) for name, value in arrays.items()})
    return path


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _npy(path: Path) -> Path:
    with path.open("wb") as file:
        np.save(file, X)
    return path


def _half(path: Path) -> Path:
    np.savez_compressed(path, x=np.arange(10_000))
    data = bytearray(path.read_bytes())
    data[200:600] = bytes(400)
    return _bytes(path, bytes(data))


INPUTS: dict[str, tuple[Callable[[Path], Path], int, tuple[str, ...]]] = {
    "not there": (lambda path: path, 2, ("cannot read arrays", "numpy.savez")),
    "a folder": (lambda path: path.parent, 2, ("cannot read arrays", "numpy.savez")),
    "empty": (lambda path: _bytes(path, b""), 2, ("cannot read arrays", "numpy.savez")),
    "noise": (lambda path: _bytes(path, bytes(range(256)) * 9), 2, ("cannot read arrays", "numpy.savez")),
    "half a zip": (lambda path: _bytes(path, b"PK\x03\x04" + b"\0" * 60), 2, ("cannot read arrays", "numpy.savez")),
    "half a file": (_half, 2, ("damaged", "numpy.savez")),
    "one array": (_npy, 2, ("cannot read arrays", "numpy.savez")),
    "objects": (lambda path: _npz(path, x=[{}, None]), 2, ("cannot read arrays", "without objects")),
}


@pytest.mark.parametrize("name", INPUTS)
def test_call_with_an_input_that_cannot_be_read(
    node: NodeProcess, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, code, told = INPUTS[name]
    path = make(tmp_path / "in.npz")
    words = ("call", "double", "--registry", node.registry, "--input", str(path), "--output", str(tmp_path / "out.npz"))
    assert main(words) == code
    check_sentence(_told(capsys), *told)
    assert not (tmp_path / "out.npz").exists()


CALLS: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "unknown model": (("dubble",), 3, ("'dubble'", "double")),
    "refused model": (("no_code",), 3, ("put its class Model there",)),
    "wrong input": (("text",), 3, ("'x'",)),
    "no time": (("double", "--timeout-s", "0"), 2, ("--timeout-s is 0", "give a number from 0.001 to 86400")),
    "NaN for a time": (("double", "--timeout-s", "nan"), 2, ("--timeout-s is nan", "give a number")),
    "a word for a time": (("double", "--timeout-s", "soon"), 2, ("--timeout-s is 'soon'", "give a number")),
    "priority": (("double", "--priority", "999"), 2, ("--priority is 999", "from 0 to 255")),
    "output in no folder": (("double", "--output", "{tmp}/none/out.npz"), 2, ("no folder", "give another --output")),
    "output that is a folder": (("double", "--output", "{tmp}"), 2, ("give another --output",)),
    "registry": (("double", "--registry", "zookeeper:2181"), 2, ("give dir:PATH",)),
    "registry that is not there": (("double", "--registry", "dir:{tmp}/none"), 3, ("registry",)),
    "registry without a node": (("double", "--registry", "dir:{tmp}", "--timeout-s", "0.2"), 3, ("start one",)),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_with_something_wrong(
    node: NodeProcess, folder: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, code, told = CALLS[name]
    given = {"--registry": node.registry, "--input": str(folder / "in.npz"), "--output": str(tmp_path / "out.npz")}
    rest = [word for option, value in given.items() if option not in words for word in (option, value)]
    assert main(["call", *(word.format(tmp=tmp_path) for word in words), *rest]) == code
    check_sentence(_told(capsys), *told, quotes_model=True)
    assert not (tmp_path / "out.npz").exists()


def _told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error; nothing on the other."""
    seen = capsys.readouterr()
    assert seen.out == ""
    (line,) = seen.err.splitlines()
    assert line.startswith("overspill: ")
    return line.removeprefix("overspill: ")


@pytest.mark.parametrize(
    "words",
    [(), ("dance",), ("call",), ("call", "double"), ("models",), ("model", "begin", "m", "--registry", "dir:x")],
    ids=lambda words: "_".join(words[:3]) or "nothing",
)  # fmt: skip
def test_wrong_arguments_end_with_2_and_the_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage: overspill")


@pytest.mark.parametrize("words", [("--help",), ("node", "--help"), ("call", "--help"), ("--version",)])
def test_help_and_version_end_with_0(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 0
    assert "overspill" in capsys.readouterr().out


def test_call_is_interrupted_with_130(node: NodeProcess, folder: Path, tmp_path: Path) -> None:
    note = tmp_path / "note"
    np.savez(tmp_path / "slow.npz", what=np.array([b"sleep 1500"]), note=np.array([str(note).encode()]))
    words = ("call", "act", "--registry", node.registry, "--input", str(tmp_path / "slow.npz"))
    process = subprocess.Popen(
        command(*words, "--output", str(tmp_path / "out.npz")), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert wait_until(lambda: bool(noted(note)), 20.0)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert stderr == "overspill: interrupted\n"
