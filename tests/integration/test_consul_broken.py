"""`consul:` against servers that break HTTP, files that are no files, a fork, and a node's older life."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import pytest

from discovery.agent.faults import ConsulError, Fault
from discovery.agent.last_good import fabric_of, load, save
from discovery.agent.registry import ConsulRegistry
from discovery.agent.url import ConsulSettings
from discovery.consul import ConsulClient
from discovery.instance import Insert
from fabric.errors import RegistryUnavailable
from tests.consul_agents import FAST, with_times
from tests.contract.test_watch import Told
from tests.integration.test_consul_answers import Scripted, entry
from tests.unit.discovery.sample import instance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOON_S = 20.0


class Broken:
    """A port that answers each request with these parts, `gap_s` apart, and then closes the connection."""

    def __init__(self, parts: list[bytes], gap_s: float = 0.0) -> None:
        self._parts, self._gap_s = parts, gap_s
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        settings = ConsulSettings("127.0.0.1", self._listener.getsockname()[1], last_good="off", times=FAST)
        self.settings = with_times(settings, answer_s=0.5)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._answer, args=(near,)))
                self._threads[-1].start()

    def _answer(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            near.recv(65536)
            for part in self._parts:
                near.sendall(part)
                if self._stop.wait(self._gap_s):
                    return

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [OK + b"X-Slow: ", *[b"a"] * 400],
        [b"HTTP/1.1 100 Continue\r\n\r\n"] * 400,
        [OK + b"Content-Length: 400\r\n\r\n", *[b"["] * 400],
    ],
    ids=["head", "interim answers", "body"],
)
def test_an_answer_that_drips_is_late(parts: list[bytes]) -> None:
    """Each byte comes in time, and the whole of it never would: 40 s where two calls of 0.5 s are granted."""
    with Broken(parts, 0.1) as there:
        began = time.monotonic()
        with pytest.raises(ConsulError) as caught:
            ConsulRegistry(there.settings).read()
        assert caught.value.fault is Fault.TIMEOUT
        assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (OK + b"Content-Length: 100\r\n\r\n[]", Fault.RESET),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n", Fault.RESET),
        (OK + b"Content-Length: 2, 3\r\n\r\n[]", Fault.GARBLED),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[::\xff\r\nContent-Length: 0\r\n\r\n", Fault.REDIRECTED),
        (b"SSH-2.0-OpenSSH\r\n", Fault.NOT_HTTP),
    ],
)
def test_a_broken_answer_has_its_own_sentence(answer: bytes, fault: Fault) -> None:
    with Broken([answer]) as there, pytest.raises(ConsulError) as caught:
        ConsulRegistry(there.settings).read()
    assert caught.value.fault is fault


@pytest.mark.parametrize("header", [b"X-Consul-Index: " + b"9" * 5000, b"X-Consul-Index: -4", b"Age: " + b"9" * 400])
def test_a_header_that_is_no_number_is_none(header: bytes) -> None:
    with Broken([OK + header + b"\r\nContent-Length: 2\r\n\r\n[]"]) as there:
        client = ConsulClient(there.settings)
        answer = client.get("/v1/health/service/overspill")
        client.close()
    assert (answer.index, answer.age_s) == (0, 0.0)


def test_a_check_that_is_never_known_holds_up_nobody() -> None:
    class Forgetful(Scripted):
        def answer(self, path: str) -> tuple[int, bytes]:
            self.known_checks = False
            return super().answer(path)

    with Forgetful() as agent:
        with closing(ConsulRegistry(agent.settings).register(instance("a"))):
            time.sleep(1.0)
        assert len(agent.asked) < 100, "four for each beat of 0.3 s, and some to leave"


def test_a_token_that_lacks_rights_is_read_again(tmp_path: Path) -> None:
    """An operator who mends the rights puts another token into the file; the old one is still known to Consul."""

    class Denying(Scripted):
        denied = True

        def answer(self, path: str) -> tuple[int, bytes]:
            return (403, b"Permission denied") if self.denied else super().answer(path)

    file = tmp_path / "token"
    file.write_text("old")
    with Denying() as agent:
        client = ConsulClient(replace(agent.settings, token_file=str(file)))
        with pytest.raises(ConsulError, match="its ACLs deny this"):
            client.get("/v1/agent/self")
        file.write_text("new")
        with pytest.raises(ConsulError, match="its ACLs deny this"):
            client.get("/v1/agent/self")
        agent.denied = False
        client.get("/v1/agent/self")
        client.close()
        assert agent.tokens == ["old", "old", "new"]


def test_an_older_life_never_writes_over_a_newer_one() -> None:
    """A rolling restart that starts the new node first: the old one still has its drain to tell."""
    with Scripted() as agent, closing(ConsulRegistry(agent.settings).register(instance("a"))) as old:
        agent.holder = json.dumps({"Meta": {"epoch": "2"}}).encode()
        agent.asked.clear()
        old.update(replace(instance("a"), devices=("cpu:1",)))
        assert not any("register" in asked for asked in agent.asked)
        assert old.statistics().superseded


def in_child(work: Callable[[], None]) -> int:
    """Runs it in a forked child, for so long at most; returns the child's exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except RegistryUnavailable as error:
            os._exit(3 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    end_s = time.monotonic() + SOON_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end_s:
            os.kill(pid, 9)
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1])


def test_a_forked_child_never_speaks_on_its_parents_connection() -> None:
    with Scripted() as agent, closing(ConsulRegistry(agent.settings).register(instance("a"))) as registration_:
        with registration_._lock:  # as in the middle of a beat
            assert in_child(lambda: registration_.update(instance("a"))) == 3
        assert in_child(registration_.close) == 0
        assert not any("deregister" in one for one in agent.asked)


def test_a_forked_child_closes_a_watch_and_its_parents_goes_on() -> None:
    with Scripted() as agent:
        agent.entries = [entry(instance("a"))]
        told = Told()
        with closing(ConsulRegistry(agent.settings).watch(told)) as watch:
            with watch._client._lock:  # as where a read just begins
                assert in_child(watch.close) == 0
            agent.entries.append(entry(instance("b")))
            agent.change()
            told.wait(lambda changes: Insert(instance("b")) in changes, SOON_S)


@pytest.fixture(params=["pipe", "device", "folder", "another's", "cut"])
def no_list(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What is no last good list of ours."""
    path = tmp_path / "list.json"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    elif request.param == "folder":
        path.mkdir()
    else:
        assert save(path, (instance("a"),), "overspill|||")
        if request.param == "cut":
            path.write_bytes(path.read_bytes()[:-9])
        elif os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        else:
            pytest.skip("only root can give a file to another user")
    return path


def test_what_is_no_list_of_ours_is_not_read(no_list: Path) -> None:
    told: list[object] = []
    thread = threading.Thread(target=lambda: told.append(load(no_list, "overspill|||")), daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert told == [None]


def test_two_fabrics_that_share_a_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    with Scripted() as agent:
        agent.entries = [entry(instance("a"))]
        here = replace(agent.settings, last_good=str(path))
        with closing(ConsulRegistry(here).watch(Told())):
            pass
    told = load(path, fabric_of(here))
    assert told is not None
    assert told.instances == (instance("a"),)
    with pytest.raises(RegistryUnavailable, match="start a Consul agent"):
        ConsulRegistry(replace(here, port=1, service="other")).watch(Told())


def test_a_fault_of_ours_after_an_answer_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scripted() as agent:
        agent.entries = [entry(instance("a"))]
        told = Told()
        with closing(ConsulRegistry(agent.settings).watch(told)) as watch:
            monkeypatch.setattr(watch, "_keep", lambda: 1 / 0)
            agent.entries.append(entry(instance("b")))
            agent.change()
            told.wait(lambda changes: Insert(instance("b")) in changes, SOON_S)
            agent.entries.append(entry(instance("c")))
            agent.change()
            told.wait(lambda changes: Insert(instance("c")) in changes, SOON_S)
