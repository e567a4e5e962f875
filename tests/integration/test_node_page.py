"""docs/node.md, as it is written: its table against the settings that there are, its example on two real nodes.

Only paths and addresses are replaced: certificates are made here, and the two hosts are two ports of loopback.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.integration.bad_node import ROOT, command, copy_models, wait_until
from tests.integration.rpc_certificates import Authority
from tests.ports import free_port
from workers.config import NodeConfig

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "node.md").read_text()


def block(language: str, word: str) -> str:
    """The page's one block in that language that holds `word`."""
    found = [text for named, text in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
             if named == language and word in text]  # fmt: skip
    assert len(found) == 1
    return str(found[0])


def test_the_table_holds_every_setting_with_its_default() -> None:
    rows = dict(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \|", PAGE, re.MULTILINE))
    told: dict[str, str] = {}
    for names, defaults in rows.items():  # a row of several settings tells one default for each, or one for all
        named, values = re.findall(r"\w+", names), re.findall("`[^`]+`", defaults) or [defaults]
        told.update(zip(named, values * len(named) if len(values) == 1 else values, strict=True))
    settings = {field.name: field.default for field in dataclasses.fields(NodeConfig)}
    assert told.keys() == settings.keys()
    for name, default in settings.items():
        if name == "models":
            assert told[name] == "(needed)"
            continue
        value = list(default) if isinstance(default, tuple) else default
        written = str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"')
        assert told[name] == (f'`"{value}"`' if isinstance(value, str) else f"`{written}`"), name


def node(folder: Path, name: str, port: int, toml: str) -> subprocess.Popen[bytes]:
    """One node with the page's file, moved to our folder and port."""
    text = toml.replace("/srv/overspill", str(folder)).replace("/etc/overspill", str(folder))
    text = text.replace("gpu1", name).replace("0.0.0.0:7071", f"127.0.0.1:{port}").replace("cpu:4", "cpu:1")
    (folder / f"{name}.toml").write_text(text)
    with (folder / f"{name}.log").open("wb") as log:
        words = command("node", "--config", str(folder / f"{name}.toml"))
        return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def caller(folder: Path, code: str, **changed: str) -> subprocess.CompletedProcess[str]:
    """The page's program, moved to our folder; `changed` is replaced too."""
    code = code.replace("/etc/overspill", str(folder))
    for old, new in changed.items():
        assert old in code
        code = code.replace(old, new)
    words = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_example_of_two_hosts(tmp_path: Path) -> None:
    copy_models(tmp_path / "models", "double")
    authority = Authority(tmp_path, "ca")
    for name in ("gpu1", "gpu2", "service"):
        authority.issue(name)
    ports = {"gpu1": free_port(), "gpu2": free_port()}
    addresses = ",".join(f"localhost:{port}" for port in ports.values())
    code = block("python", "Router.connect").replace("gpu1:7071,gpu2:7071", addresses)
    with ExitStack() as undo:
        for name, port in ports.items():
            process = node(tmp_path, name, port, block("toml", "tls_cert"))
            undo.callback(lambda process=process: (process.send_signal(signal.SIGTERM), process.wait(30)))
        for name in ports:
            log = tmp_path / f"{name}.log"
            assert wait_until(lambda log=log: "is ready at" in log.read_text(), 40.0), log.read_text()
        done = caller(tmp_path, code)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"\[0\. 2\. 4\. 6\.\] \S+ rpc\n", done.stdout), done.stdout
        wrong = caller(tmp_path, code, **{"a long random secret": "a guess"})
        assert wrong.returncode == 1
        assert "errors.AccessDenied" in wrong.stderr or "errors.Unavailable" in wrong.stderr, wrong.stderr
        stranger = caller(tmp_path, code, **{"service.pem": "ca.pem"})
        assert stranger.returncode == 1
    for name in ports:
        lines = (tmp_path / f"{name}.log").read_text().splitlines()
        assert lines[-1].endswith(f"node {name} stopped"), os.linesep.join(lines)
