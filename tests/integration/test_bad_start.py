"""A node that cannot start as it was told: exit code 2 and one line that says what to change.

Wrong settings are told before anything starts, so they run in this process; what only a start can show is a process.
"""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

from overspill import Router
from overspill.cli import main
from tests.integration.bad_node import ROOT, NodeProcess, collect, command, copy_models, wait_until
from tests.integration.bad_ways import check_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Routers that were closed are gone before the look for leaks."""
    yield from collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small repository, and room for wrong files."""
    folder = tmp_path_factory.mktemp("start")
    copy_models(folder / "models", "double")
    return folder


SETTINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no models": (("--registry", "dir:{folder}/r"), ("--models DIR",)),
    "device": (("--devices", "gpu:1"), ("'gpu:1'", "give cpu:N")),
    "no devices": (("--devices", "cpu:0"), ("'cpu:0'", "give cpu:N")),
    "many devices": (("--devices", "cpu:60,cpu:60"), ("120 executors", "at most 64")),
    "wire": (("--wires", "local,pigeon"), ("pigeon", "give some of local,")),
    "no wires": (("--wires", ""), ("give some of local,",)),
    "address": (("--listen", "somewhere"), ("'somewhere'", "give HOST:PORT")),
    "huge port": (("--listen", "127.0.0.1:99999"), ("99999", "give HOST:PORT")),
    "half of TLS": (("--tls-cert", "{folder}/file"), ("tls_cert and tls_key", "give the missing file")),
    "settings that are not there": (("--config", "{folder}/none.toml"), ("none.toml", "give a file of settings")),
    "settings that are no TOML": (("--config", "{folder}/bad.toml"), ("bad.toml", "no TOML")),
    "unknown setting": (("--config", "{folder}/unknown.toml"), ("setting colour is unknown", "known are")),
    "setting of another kind": (("--config", "{folder}/kind.toml"), ("drain_s", "must be a number")),
    "misspelt": (("--deviecs", "cpu:1"), ("does not know --deviecs", "did you mean --devices?")),
    "setting below its least": (("--config", "{folder}/least.toml"), ("queue_max is 0", "from 1 to")),
}
NODES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "models that are not there": (("--models", "{folder}/none"), ("cannot be read", "give a folder of models")),
    "models that are a file": (("--models", "{folder}/file"), ("cannot be read", "give a folder of models")),
    "the folder of one model": (("--models", "{folder}/models/double"), ("give the parent folder",)),
    "no model in it": (("--models", "{folder}/empty"), ("holds no model", "put NAME/config.pbtxt")),
    "registry": (("--registry", "consul"), ("'consul'", "give dir:PATH")),
    "TLS files that are not there": (("--tls-cert", "{folder}/none.pem", "--tls-key", "{folder}/none.key"), ("none",)),
    "TLS files that are none": (("--tls-cert", "{folder}/file", "--tls-key", "{folder}/file"), ("file",)),
    "port in use": (("--listen", "127.0.0.1:{port}"), ("{port}", "another")),
    "port of root": (("--listen", "192.0.2.1:9000"), ("192.0.2.1",)),
    "folder that cannot be": (("--config", "{folder}/runtime.toml"), ("node.sock",)),
    "folder that is long": (("--config", "{folder}/long.toml"), ("cannot be used", "set runtime_dir")),
}
LONG = 107 - len("/node.sock")
"""The longest path in which that socket can be, and no socket of a longer name."""


@pytest.fixture(scope="module")
def wrong(folder: Path) -> Iterator[dict[str, str]]:
    """Wrong files, and a port that is taken."""
    (folder / "file").write_text("no certificate")
    (folder / "empty").mkdir()
    long = folder / "n".ljust(LONG - len(str(folder)) - 1, "n")
    long.mkdir()
    texts = {
        "bad": "models = [",
        "unknown": 'colour = "red"',
        "kind": 'drain_s = "soon"',
        "least": "queue_max = 0",
        "runtime": f'runtime_dir = "{folder / "never"}"',
        "long": f'runtime_dir = "{long}"',
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield {"folder": str(folder), "port": str(taken.getsockname()[1])}


def _told(stderr: str, told: tuple[str, ...], wrong: dict[str, str]) -> None:
    lines = [line for line in stderr.splitlines() if line.startswith("overspill: ")]
    assert len(lines) == 1, stderr
    assert "Traceback" not in stderr
    check_sentence(lines[0].removeprefix("overspill: "), *(word.format(**wrong) for word in told))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_setting_is_told_before_anything_starts(
    wrong: dict[str, str], folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, told = SETTINGS[name]
    models = () if name == "no models" else ("--models", str(folder / "models"))
    assert main(["node", *models, *(word.format(**wrong) for word in words)]) == 2
    _told(capsys.readouterr().err, told, wrong)


@pytest.mark.parametrize("name", NODES)
def test_a_node_that_cannot_start_says_why_and_exits_2(wrong: dict[str, str], folder: Path, name: str) -> None:
    words, told = NODES[name]
    words = tuple(word.format(**wrong) for word in words)
    if "--models" not in words:
        words = ("--models", str(folder / "models"), *words)
    done = subprocess.run(command("node", *words), cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    _told(done.stderr, told, wrong)


def test_a_node_id_that_is_taken_is_told(folder: Path) -> None:
    registry = f"dir:{folder / 'taken'}"
    with NodeProcess(folder, registry, folder / "models", name="one") as node:
        node.wait_ready()
        words = ("--registry", registry, "--models", str(folder / "models"), "--node-id", "one")
        done = subprocess.run(
            command("node", *words), cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 2, done.stderr
        _told(done.stderr, ("node id 'one' is taken by a running node", "give another --node-id"), {})


def test_the_log_of_a_start_warns_and_of_an_end_says_so(folder: Path) -> None:
    models = copy_models(folder / "warned", "double")
    with (models / "double" / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "idempotnt" value { string_value: "true" } }\n')
    log = folder / "alone.log"
    with log.open("wb") as output:
        words = ("--models", str(models), "--node-id", "alone", "--wires", "local")
        node = subprocess.Popen(
            command("node", *words), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        assert wait_until(lambda: "is ready at" in log.read_text(), 30.0), log.read_text()
    finally:
        node.terminate()
        assert node.wait(30) == 0
    lines = log.read_text().splitlines()
    assert sum("no caller can find this node by discovery" in line for line in lines) == 1, lines
    (ready,) = [line for line in lines if "is ready at" in line]
    assert ready.endswith(" and serves double")
    assert any("parameter 'idempotnt' is not one of ours; did you mean 'idempotent'?" in line for line in lines), lines
    assert lines[-1].endswith("node alone stopped")


def test_a_registry_that_cannot_be_written_does_not_stop_a_node(folder: Path) -> None:
    registry = folder / "late"
    registry.write_text("a file for now")
    with NodeProcess(folder, f"dir:{registry}", folder / "models", name="late") as node:
        assert wait_until(lambda: "goes on trying" in node.log, 30.0), node.log
        registry.unlink()
        node.wait_ready()
        with Router.connect(f"dir:{registry}") as router:
            x = np.arange(3, dtype=np.float32)
            with router.infer("double", {"x": x}, timeout_s=20.0) as reply:
                assert np.array_equal(reply["y"], 2 * x)
    assert "Traceback" not in node.log
