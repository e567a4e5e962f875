"""`consul:` against answers of current agents, told by a server of the test: what an old agent cannot say."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

import pytest

from discovery.agent.meta import check_id, registration
from discovery.agent.registry import ConsulRegistry
from discovery.agent.url import ConsulSettings, parse_url
from discovery.instance import Insert, Instance
from discovery.registry import open_registry
from fabric.errors import RegistryUnavailable
from overspill.cli import main
from tests.consul_agents import FAST, wait_until
from tests.contract.test_watch import Told
from tests.unit.discovery.sample import instance

if TYPE_CHECKING:
    from pathlib import Path

SOON_S = 20.0
SETTINGS = parse_url("http://127.0.0.1:8500")


def entry(one: Instance) -> dict[str, object]:
    """A health entry with the fields that agents from 1.11 to 1.22 add."""
    body = json.loads(registration(one, SETTINGS))
    more = {"Partition": "default", "Namespace": "default", "PeerName": "", "Locality": None}
    check = {"CheckID": check_id(one), "Name": "heartbeat", "Status": "passing", "Output": "", "ExposedPort": 0, **more}
    service = {"ID": body["ID"], "Service": "overspill", "Meta": body["Meta"], "SocketPath": "", **more}
    return {"Node": {"Node": "host", **more}, "Service": service, "Checks": [{**check, "Interval": "", "Timeout": ""}]}


class Scripted:
    """A server whose health list, filtering and check answers a test sets."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []
        self.index = 10
        self.filtered = False
        self.raw: bytes | None = None
        self.known_checks = True
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.holder: bytes | None = None
        self._changed = threading.Condition()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                scripted.asked.append(f"{self.command} {self.path}")
                scripted.tokens.append(self.headers.get("X-Consul-Token", ""))
                status, body = scripted.answer(self.path)
                self.send_response(status)
                self.send_header("X-Consul-Index", str(scripted.index))
                self.send_header("X-Consul-Query-Backend", "streaming")
                if scripted.filtered:
                    self.send_header("X-Consul-Results-Filtered-By-ACLs", "true")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_POST = do_GET  # noqa: N815 - the library's names

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def answer(self, path: str) -> tuple[int, bytes]:
        """(status, body) of one request; a blocking one waits for a change."""
        if path.startswith("/v1/health/service"):
            if f"index={self.index}&" in path:
                with self._changed:
                    self._changed.wait(0.3)
            return 200, json.dumps(self.entries).encode() if self.raw is None else self.raw
        if path.startswith("/v1/agent/check/") and not self.known_checks:
            return 404, b'Unknown check ID "a-1". Ensure that the check ID is passed, not the check name.'
        if path.startswith("/v1/agent/service/register"):
            self.known_checks = True
            return 200, b""
        if path.startswith("/v1/agent/service/a"):
            return (404, b'unknown service ID: "a"') if self.holder is None else (200, self.holder)
        if path.startswith("/v1/internal/acl/authorize"):
            return 401, b"ACL support disabled"
        return 200, b""

    def change(self) -> None:
        """Wakes blocking reads with a new index."""
        with self._changed:
            self.index += 1
            self._changed.notify_all()

    @property
    def settings(self) -> ConsulSettings:
        """Settings of a registry here."""
        return ConsulSettings("127.0.0.1", int(self._server.server_address[1]), last_good="off", times=FAST)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def test_entries_of_current_agents_are_read() -> None:
    with Scripted() as agent:
        agent.entries = [entry(instance("a"))]
        assert ConsulRegistry(agent.settings).read() == (instance("a"),)


def test_a_filtered_list_is_refused_at_once() -> None:
    """From 1.11 on an agent says that ACLs hid something: then not even a part of the list is taken for the whole."""
    with Scripted() as agent:
        agent.entries = [entry(instance(name)) for name in "abc"]
        told = Told()
        with closing(ConsulRegistry(agent.settings).watch(told)) as watch:
            agent.entries, agent.filtered = [entry(instance("a")), entry(instance("d"))], True
            agent.change()
            wait_until(lambda: watch.statistics().hidden_refused >= 2, SOON_S)
            assert len(told.changes) == 3
            agent.entries, agent.filtered = [entry(instance(name)) for name in "abcd"], False
            agent.change()
            told.wait(lambda changes: Insert(instance("d")) in changes, SOON_S)
            assert len(told.changes) == 4


def test_a_first_list_that_is_all_hidden_is_no_list() -> None:
    """Else a caller without rights would be told that no node is there."""
    with Scripted() as agent:
        agent.filtered = True
        with pytest.raises(RegistryUnavailable, match="hide all entries"):
            ConsulRegistry(agent.settings).watch(Told())


def test_a_check_that_is_not_known_is_404() -> None:
    with Scripted() as agent, closing(ConsulRegistry(agent.settings).register(instance("a"))) as registration_:
        agent.known_checks = False
        began = time.monotonic()
        wait_until(lambda: registration_.statistics().re_registrations == 1, SOON_S)
        assert time.monotonic() - began < SOON_S
        beats = registration_.statistics().beats
        wait_until(lambda: registration_.statistics().beats > beats, SOON_S)


def test_scope_and_reads_are_as_designed() -> None:
    """No `passing`, `near`, `tag` or `filter`: they bypass streaming, or hide what is needed."""
    with Scripted() as agent:
        agent.entries = [entry(instance("a"))]
        settings = parse_url(f"{agent.settings.place}?last_good=off&ns=team&partition=p&dc=east")
        with closing(ConsulRegistry(settings).watch(Told())):
            wait_until(lambda: sum("/v1/health" in asked for asked in agent.asked) >= 2, SOON_S)
        first, second = [asked for asked in agent.asked if "/v1/health" in asked][:2]
        assert first == "GET /v1/health/service/overspill?ns=team&partition=p&cached=&dc=east"
        assert second == "GET /v1/health/service/overspill?ns=team&partition=p&cached=&index=10&wait=60000ms&dc=east"


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"{}", b"[" * 100_000, b"\xff\xfe", b'"text"'])
def test_garbled_answers_change_nothing(raw: bytes) -> None:
    with Scripted() as agent:
        agent.entries = [entry(instance("a"))]
        told = Told()
        with closing(ConsulRegistry(agent.settings).watch(told)) as watch:
            agent.raw = raw
            agent.change()
            wait_until(lambda: watch.statistics().failures >= 2, SOON_S)
            assert "cannot be read" in watch.trouble()
            assert told.changes == [Insert(instance("a"))]
        with pytest.raises(RegistryUnavailable, match="cannot be read"):
            ConsulRegistry(agent.settings).read()


def test_a_file_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    from dataclasses import replace

    (tmp_path / "file").touch()
    with Scripted() as agent:
        agent.entries = [entry(instance("a"))]
        settings = replace(agent.settings, last_good=str(tmp_path / "file" / "list.json"))
        told = Told()
        with closing(ConsulRegistry(settings).watch(told)) as watch:
            assert told.changes == [Insert(instance("a"))]
            assert watch.statistics().saves_failed == 1


def test_what_was_garbled_on_its_way_hides_nobody() -> None:
    """An entry that still reads as one, and is not what its node wrote: another epoch, or no entry any more."""
    with Scripted() as agent:
        sound = [entry(instance(name)) for name in "abc"]
        agent.entries = sound
        told = Told()
        with closing(ConsulRegistry(agent.settings).watch(told)) as watch:
            for spoil in ({"epoch": "99"}, {"readiness": "draining"}, {"node": "stranger"}):
                bad = json.loads(json.dumps(sound))
                bad[1]["Service"]["Meta"].update(spoil)
                agent.entries = bad
                reads = watch.statistics().reads
                agent.change()
                wait_until(lambda: watch.statistics().reads > reads + 1, SOON_S)  # noqa: B023 - awaited here
                agent.entries = sound
                agent.change()
            bad = json.loads(json.dumps(sound))
            bad[1] = {"Node": 7}
            agent.entries = bad
            agent.change()
            agent.entries = sound  # an agent that is asked again soon says what is so
            wait_until(lambda: watch.statistics().unreadable >= 3, SOON_S)
            assert told.changes == [Insert(instance(name)) for name in "abc"]


def test_models_shows_the_last_good_list_while_consul_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "list.json"
    with Scripted() as agent:
        agent.entries = [entry(instance("a"))]
        url = f"consul:{agent.settings.place}?last_good={file}"
        with closing(open_registry(url).watch(Told())):
            pass
        assert main(["models", "--registry", url]) == 0
        now = capsys.readouterr()
        assert now.err == ""
    assert main(["models", "--registry", url]) == 0
    later = capsys.readouterr()
    assert later.out == now.out
    (line,) = later.err.splitlines()
    assert line.startswith("overspill: ")
    assert "; this is the list of " in line
    file.unlink()
    assert main(["models", "--registry", url]) == 3
    gone = capsys.readouterr()
    assert gone.out == ""
    assert gone.err.count("\n") == 1
