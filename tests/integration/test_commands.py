"""The `overspill` command from end to end, as the README tells it: its model, its client, its commands, real processes.

A node that was told to stop leaves nothing behind. What goes wrong is in `tests/integration/test_bad_commands.py`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from overspill import Router
from overspill.cli import main
from overspill.doctoring import repository_findings
from tests.integration.bad_models import write_broken
from tests.integration.bad_node import ROOT, NodeProcess, collect, command, copy_models, wait_until
from tests.integration.fault_bench import inputs, noted
from tests.integration.readme_model import REGISTRY, block, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator

X = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Routers that were closed are gone before the look for leaks."""
    yield from collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    write_model(folder / "models")
    write_broken(folder / "models")
    copy_models(folder / "models", "act", "text")
    np.savez(folder / "in.npz", x=X)
    return folder


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[NodeProcess]:
    with NodeProcess(folder, f"dir:{folder / 'registry'}", folder / "models", devices="cpu:2") as started:
        started.wait_ready()
        yield started


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def python(code: str, registry: str) -> subprocess.CompletedProcess[str]:
    """A program of the README, with our registry and a deadline that a machine with other work keeps."""
    assert f"dir:{REGISTRY}" in code
    assert "timeout_s=0.8" in code
    code = code.replace(f"dir:{REGISTRY}", registry).replace("timeout_s=0.8", "timeout_s=30.0")
    words = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


# As the README says.


def test_the_three_commands_of_the_readme(tmp_path: Path) -> None:
    write_model(tmp_path / "models")
    lines = block("sh", "overspill node").splitlines() + block("sh", "overspill models").splitlines()
    told = [line.partition("#")[0].split() for line in lines]
    told = [[f"dir:{tmp_path}/registry" if word == f"dir:{REGISTRY}" else word for word in words] for words in told]
    assert [words[:2] for words in told] == [["overspill", name] for name in ("node", "models", "doctor")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen(command(*told[0][1:]), cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        assert wait_until(lambda: b" is ready at " in (tmp_path / "log").read_bytes(), 30.0), (
            tmp_path / "log"
        ).read_text()
        models = run(*told[1][1:])
        assert models.returncode == 0, models.stderr
        assert "double" in models.stdout
        assert wait_until(lambda: "accepts connections" in run(*told[2][1:]).stdout)
    finally:
        node.send_signal(signal.SIGINT)
        assert node.wait(30) == 0


def test_the_client_of_the_readme(node: NodeProcess) -> None:
    done = python(block("python", " Router.connect", "router.prepare"), node.registry)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("[0. 2. 4. 6.] ")
    assert "worker='a'" in done.stdout


def test_the_leased_inputs_of_the_readme(node: NodeProcess) -> None:
    code = block("python", " Router.connect", "router.prepare") + "    print(reply['y'].sum())\n"
    done = python(code, node.registry)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n8e+06\n")


def test_the_asynchronous_client_of_the_readme(node: NodeProcess) -> None:
    done = python(block("python", "AsyncRouter.connect"), node.registry)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("np.float32") == 50
    assert "np.float32(98.0)]" in done.stdout


def test_the_shell_of_the_readme(node: NodeProcess, folder: Path) -> None:
    text = block("sh", "overspill call double")
    for old, new in (
        (f"dir:{REGISTRY}", node.registry),
        ("in.npz", str(folder / "in.npz")),
        ("out.npz", str(folder / "out.npz")),
    ):
        assert old in text
        text = text.replace(old, new)
    make, call = text.splitlines()
    made = subprocess.run(
        [sys.executable, *shlex.split(make)[1:]], capture_output=True, text=True, timeout=60, check=False
    )
    assert made.returncode == 0, made.stderr
    done = run(*shlex.split(call)[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("double: y[4] from a over ")
    with np.load(folder / "out.npz") as outputs:
        assert np.array_equal(outputs["y"], 2 * X)
        assert outputs["y"].dtype == np.float32


def test_models_shows_what_is_offered_and_what_was_refused(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "--registry", node.registry]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["MODEL", "VERSION", "NODE", "STATE", "IDEMPOTENT", "INPUTS", "OUTPUTS"]
    (double,) = [line.split() for line in lines if line.startswith("double ")]
    assert double == ["double", "1", "a", "ready", "yes", "x:FP32[-1]", "y:FP32[-1]"]
    assert [line.split()[3] for line in lines if line.startswith("no_code ")] == ["refused"]
    below = lines[lines.index("refused:") + 1 :]
    (why,) = [line.split(maxsplit=3) for line in below if line.startswith("  no_code ")]
    assert why[1:3] == ["on", "a:"]
    assert why[3].startswith("model 'no_code' has no ")
    assert max(map(len, lines[: lines.index("refused:")])) < 160, "no reason makes the table wide"


def test_models_as_json(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--registry", node.registry, "--json"]) == 0
    (instance,) = json.loads(capsys.readouterr().out)
    assert (instance["node_id"], instance["readiness"], len(instance["devices"])) == ("a", "ready", 2)
    models = {model["name"]: model for model in instance["models"]}
    assert models["double"]["inputs"] == [{"name": "x", "dtype": "FP32", "dims": [-1]}]
    assert models["double"]["idempotent"] is True
    assert "put its class Model there" in models["no_code"]["refused"]


def test_doctor_finds_the_broken_models_and_the_node(
    node: NodeProcess, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--registry", node.registry, "--models", str(folder / "models")]) == 1
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert any(line.startswith("ok       a: 127.0.0.1:") and "accepts connections" in line for line in lines), out
    assert any(line.startswith("broken   a/no_code: ") for line in lines), out
    assert any(line.startswith("ok       registry: ") and line.endswith(" answers with 1 node") for line in lines), out
    assert "overspill[" not in out, "a checkout has no such name to install"
    assert any(line.startswith("broken   cut_config: ") for line in lines), out
    assert "Traceback" not in out


def test_doctor_on_a_sound_repository(tmp_path: Path) -> None:
    copy_models(tmp_path / "models", "double")
    done = run("doctor", "--models", str(tmp_path / "models"))
    broken = [line for line in done.stdout.splitlines() if line.startswith("broken")]
    assert done.returncode == (1 if broken else 0), done.stdout  # this machine may lack something that is needed
    assert "ok       double: readable\n" in done.stdout
    assert done.stderr == ""


def test_doctor_tells_of_fields_without_effect(tmp_path: Path) -> None:
    copy_models(tmp_path, "double")
    with (tmp_path / "double" / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }\n")
    (found,) = repository_findings(str(tmp_path))
    assert found.sentence.startswith("readable; ")
    assert found.sentence.endswith("field 'response_cache' is not used here and changes nothing")


def test_a_command_that_leaves_at_once_does_what_is_to_be_done_at_its_end() -> None:
    code = (
        "import atexit, sys\nfrom overspill.cli import leave\n"
        "class Library:\n    def __del__(self): print('taken down', file=sys.__stdout__, flush=True)\n"
        "library = Library()\natexit.register(print, 'exit handler')\nprint('last line')\nleave(7)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "last line\nexit handler\n", "")


# How a node ends.


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_node_that_is_told_to_stop_ends_its_work_and_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    runtime, temporary = tmp_path / "run", tmp_path / "tmp"
    models = copy_models(tmp_path / "models", "act")
    for made in (runtime, temporary):
        made.mkdir(mode=0o700)
    before = {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"], "TMPDIR": os.environ["TMPDIR"]}
    os.environ.update(XDG_RUNTIME_DIR=str(runtime), TMPDIR=str(temporary))
    try:
        node = NodeProcess(tmp_path, f"dir:{tmp_path / 'registry'}", models, devices="cpu:2")
    finally:
        os.environ.update(before)
    with node:
        node.wait_ready()
        assert list(runtime.glob("overspill-*/node.sock"))
        children = node.children()
        assert len(children) == 3
        outcomes: list[int] = []
        with Router.connect(node.registry) as router:

            def ask() -> None:
                with router.infer("act", inputs("sleep 600", tmp_path / "note"), timeout_s=10.0) as reply:
                    outcomes.append(int(reply["pid"][0]))

            asked = threading.Thread(target=ask)
            asked.start()
            assert wait_until(lambda: bool(noted(tmp_path / "note")))
            assert node.end(how) == 0, node.log
            asked.join(10)
        assert outcomes == [noted(tmp_path / "note")[0][0]], "the request that ran was not let end"
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert [*runtime.iterdir(), *temporary.iterdir()] == []
    assert [path.name for path in (tmp_path / "registry").iterdir() if not path.name.startswith(".")] == []
    assert not list(Path(tempfile.gettempdir()).glob("overspill-*"))
    assert "Traceback" not in node.log


def test_a_node_in_a_hurry_ends_at_the_second_signal(tmp_path: Path) -> None:
    models = copy_models(tmp_path / "models", "act")
    with NodeProcess(tmp_path, f"dir:{tmp_path / 'registry'}", models) as node:
        node.wait_ready()
        with Router.connect(node.registry) as router:
            failed = threading.Event()

            def ask() -> None:
                try:
                    router.infer("act", inputs("sleep 30000", tmp_path / "note"), timeout_s=40.0)
                except Exception:  # noqa: BLE001 - the router may say this in several ways
                    failed.set()

            asked = threading.Thread(target=ask)
            asked.start()
            assert wait_until(lambda: bool(noted(tmp_path / "note")))
            began_s = time.monotonic()
            node.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            assert node.process.poll() is None, "it drains"
            assert node.end(signal.SIGINT) == 0
            assert time.monotonic() - began_s < 10.0
            router.close()
            asked.join(15)
            assert failed.is_set()
