"""`consul:` behind ACLs, TLS and mTLS, and what `overspill doctor` says of each way to set it up wrong."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from discovery.agent.faults import ConsulError, Fault
from discovery.agent.registry import ConsulRegistry
from discovery.instance import Insert
from discovery.registry import open_registry
from fabric.errors import ConfigError, RegistryUnavailable
from overspill.doctoring import registry_findings
from overspill.findings import Grade
from tests.consul_agents import FAST, Agent, binary, wait_until
from tests.contract.test_watch import Told
from tests.integration.rpc_certificates import Authority
from tests.ports import free_port
from tests.unit.discovery.sample import instance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MASTER = "4c5b7f7e-0000-4000-8000-000000000000"
SOON_S = 20.0
READER = 'service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }'
WRITER = READER + ' service "overspill" { policy = "write" }'


@dataclass(frozen=True, slots=True)
class Guarded:
    """An agent that denies by default, with a token file for each kind of caller, and HTTPS with and without mTLS."""

    agent: Agent
    folder: Path
    tls: str
    """Settings of a URL that reaches its HTTPS port."""

    def token(self, name: str, rules: str) -> str:
        """Makes a token with these rules; gives the path of its file."""
        ask = self.agent.ask
        policy = f"{name}-{time.monotonic_ns()}"
        ask("PUT", "/v1/acl/policy", {"Name": policy, "Rules": rules}, MASTER)
        made = ask("PUT", "/v1/acl/token", {"Policies": [{"Name": policy}]}, MASTER)
        path = self.folder / name
        path.write_text(made["SecretID"] + "\n")
        return str(path)

    def revoke(self, path: str) -> None:
        """Deletes the token of a file."""
        from pathlib import Path

        told = self.agent.ask("GET", "/v1/acl/token/self", token=Path(path).read_text().strip())
        self.agent.ask("DELETE", f"/v1/acl/token/{told['AccessorID']}", token=MASTER)

    def url(self, more: str) -> str:
        """A registry URL there."""
        return f"consul:http://127.0.0.1:{self.agent.http}?last_good=off&{more}"

    def https(self, more: str, host: str = "127.0.0.1") -> str:
        """The same over TLS."""
        return f"consul:https://{host}:{self.agent.https}?last_good=off&{more}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    binary()
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder)
    served, ours = authority.issue("agent"), authority.issue("ours")
    more = {
        "client_addr": "127.0.0.1 127.0.0.2",
        "acl": {"enabled": True, "default_policy": "deny", "tokens": {"master": MASTER}},
        "cert_file": str(served.certificate),
        "key_file": str(served.key),
        "ca_file": str(authority.file),
        "verify_incoming_https": True,
    }
    agent = Agent(folder, "guarded", more=more)
    agent.config["ports"]["https"] = agent.https
    with agent:
        agent.wait_leader()
        yield Guarded(agent, folder, f"ca={authority.file}&cert={ours.certificate}&key={ours.key}")


def broken(url: str) -> str:
    """What the doctor says is broken, or should be known."""
    found = [one for one in registry_findings(url) if one.grade in {Grade.BROKEN, Grade.NOTE}]
    for one in found:
        assert "\n" not in one.sentence
        assert "Traceback" not in one.sentence
        assert "Error(" not in one.sentence, "a third-party exception is never the answer"
    return " | ".join(one.sentence for one in found)


def test_tokens_are_used_for_all_and_mtls_too(guarded: Guarded) -> None:
    writer, reader = guarded.token("writer", WRITER), guarded.token("reader", READER)
    told = Told()
    with closing(open_registry(guarded.https(f"{guarded.tls}&token_file={writer}")).register(instance("a"))):
        for url in (guarded.url(f"token_file={reader}"), guarded.https(f"{guarded.tls}&token_file={reader}")):
            assert open_registry(url).read() == (instance("a"),)
        with closing(open_registry(guarded.https(f"{guarded.tls}&token_file={reader}")).watch(told)):
            assert told.changes == [Insert(instance("a"))]
            with pytest.raises(RegistryUnavailable, match="service write to register"):
                open_registry(guarded.url(f"token_file={reader}")).register(instance("b"))


def test_the_environment_does_not_win(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = guarded.token("reader", READER)
    for name, value in (
        ("CONSUL_HTTP_TOKEN", "another"),
        ("CONSUL_HTTP_ADDR", "127.0.0.1:1"),
        ("CONSUL_HTTP_SSL", "true"),
        ("HTTP_PROXY", "http://127.0.0.1:1"),
        ("http_proxy", "http://127.0.0.1:1"),
    ):
        monkeypatch.setenv(name, value)
    url = guarded.url(f"token_file={reader}")
    assert open_registry(url).read() == ()
    assert "CONSUL_HTTP_TOKEN is set and is not used" in broken(url)


def test_a_token_that_is_revoked_removes_nobody(guarded: Guarded) -> None:
    """Reads are refused (403) from then on; a new token in the same file heals it."""
    writer, reader = guarded.token("writer", WRITER), guarded.token("short", READER)
    settings = replace(ConsulRegistry(guarded.url(f"token_file={reader}").removeprefix("consul:")).settings, times=FAST)
    told = Told()
    registering = ConsulRegistry(replace(settings, token_file=writer))
    with closing(registering.register(instance("a"))), closing(ConsulRegistry(settings).watch(told)) as watch:
        guarded.revoke(reader)
        with closing(registering.register(instance("b"))):  # wakes the read that is out
            wait_until(lambda: watch.statistics().failures >= 2, SOON_S)
            assert "our token" in watch.trouble()
            assert "our token" in broken(guarded.url(f"token_file={reader}"))
            guarded.token("short", READER)
            told.wait(lambda changes: Insert(instance("b")) in changes, SOON_S)
            assert told.changes == [Insert(instance("a")), Insert(instance("b"))]


def test_rights_that_are_taken_hide_everybody_and_remove_nobody(guarded: Guarded) -> None:
    """The measured trap: without rights an old agent answers 200 and an empty list."""
    writer, reader = guarded.token("writer", WRITER), guarded.token("changing", READER)
    settings = replace(ConsulRegistry(guarded.url(f"token_file={reader}").removeprefix("consul:")).settings, times=FAST)
    told = Told()
    registering = ConsulRegistry(replace(settings, token_file=writer))
    with closing(registering.register(instance("a"))), closing(ConsulRegistry(settings).watch(told)) as watch:
        own = guarded.agent.ask("GET", "/v1/acl/token/self", token=(guarded.folder / "changing").read_text().strip())
        path = f"/v1/acl/token/{own['AccessorID']}"
        guarded.agent.ask("PUT", path, {**own, "Policies": []}, MASTER)
        with closing(registering.register(instance("b"))):
            wait_until(lambda: watch.statistics().hidden_refused >= 2, SOON_S)
            assert told.changes == [Insert(instance("a"))]
            assert "hide all entries" in watch.trouble()
            with pytest.raises(RegistryUnavailable, match="hide all entries"):
                ConsulRegistry(settings).read()
            guarded.agent.ask("PUT", path, own, MASTER)
            told.wait(lambda changes: Insert(instance("b")) in changes, SOON_S)


def test_doctor_explains_acl(guarded: Guarded) -> None:
    writer, reader = guarded.token("writer", WRITER), guarded.token("reader", READER)
    blind, unknown = guarded.token("blind", 'key "x" { policy = "read" }'), guarded.folder / "unknown"
    unknown.write_text("7a7a7a7a-0000-4000-8000-000000000000")
    with closing(open_registry(guarded.url(f"token_file={writer}")).register(replace(instance("a"), rpc=""))):
        assert "may not" not in broken(guarded.url(f"token_file={writer}"))
        assert "may not register nodes; add `service" in broken(guarded.url(f"token_file={reader}"))
        assert "may not watch: no worker is seen; add `service_prefix" in broken(guarded.url(f"token_file={blind}"))
        assert "add `node_prefix" in broken(guarded.url(f"token_file={blind}"))
        assert "no token is given" in broken(guarded.url(""))
        with pytest.raises(RegistryUnavailable, match="hide all entries"):
            open_registry(guarded.url("")).watch(Told())
        assert "its ACLs do not know our token" in broken(guarded.url(f"token_file={unknown}"))
    assert "no node; start one" in broken(guarded.url(f"token_file={reader}"))


def test_doctor_explains_tls(guarded: Guarded, tmp_path: Path) -> None:
    token = guarded.token("reader", READER)
    other = Authority(tmp_path, "other")
    ca, cert, key = guarded.tls.split("&")
    assert "signed by no authority that is trusted here" in broken(guarded.https(f"token_file={token}"))
    assert "signed by no authority" in broken(guarded.https(f"ca={other.file}&{cert}&{key}"))
    assert "asks for a certificate of ours" in broken(guarded.https(f"{ca}&token_file={token}"))
    assert "names another host" in broken(guarded.https(guarded.tls, host="127.0.0.2"))
    plain_on_tls = guarded.https("").replace("https", "http")
    assert "speaks HTTPS there" in broken(plain_on_tls)
    tls_on_plain = f"consul:https://127.0.0.1:{guarded.agent.http}?{guarded.tls}"
    assert "speaks plain HTTP there" in broken(tls_on_plain)
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    assert "cannot be read" in broken(guarded.https(f"ca={bad}&{cert}&{key}"))
    assert "which is no file" in broken(guarded.https(f"ca={tmp_path / 'none'}&{cert}&{key}"))


def test_doctor_explains_places(guarded: Guarded) -> None:
    token = guarded.token("reader", READER)
    assert "nothing listens there" in broken(f"consul:http://127.0.0.1:{free_port()}")
    assert "no such host" in broken("consul:http://no-such-host.invalid:8500")
    for port in (guarded.agent.server, guarded.agent.serf):
        told = broken(f"consul:http://127.0.0.1:{port}?answer_s=1")
        assert "agent's HTTP port" in told or "did not answer in time" in told, "gossip waits for more"
    assert "check dc=NAME" in broken(guarded.url(f"token_file={token}&dc=elsewhere"))
    assert "Enterprise only" in broken(guarded.url(f"token_file={token}&ns=team"))
    assert "holds no token" in broken(guarded.url(f"token_file={_empty(guarded.folder)}"))


def _empty(folder: Path) -> Path:
    path = folder / "empty"
    path.touch()
    return path


def test_doctor_explains_entries(guarded: Guarded) -> None:
    agent, token = guarded.agent, guarded.token("writer", WRITER)
    url = guarded.url(f"token_file={token}")
    agent.ask("PUT", "/v1/agent/service/register", {"Name": "overspill", "ID": "web"}, MASTER)
    critical = {"Name": "overspill", "ID": "dead", "Check": {"TTL": "10s"}}
    from discovery.agent.meta import registration

    body = json.loads(registration(instance("dead"), ConsulRegistry(url.removeprefix("consul:")).settings))
    body["Checks"] = [critical["Check"]]
    agent.ask("PUT", "/v1/agent/service/register", body, MASTER)
    try:
        told = broken(url)
        assert "web on guarded is no node's entry" in told
        assert "dead on guarded is critical" in told
    finally:
        for name in ("web", "dead"):
            agent.ask("PUT", f"/v1/agent/service/deregister/{name}", token=MASTER)


@pytest.mark.parametrize(
    ("rest", "mend"),
    [
        ("", "give dir:PATH, consul:"),
        ("127.0.0.1:8500", "give consul:http://HOST:PORT"),
        ("http://", "give consul:http://HOST:PORT"),
        ("http://h:x", "give consul:http://HOST:PORT"),
        ("http://h:8500/v1", "give consul:http://HOST:PORT"),
        ("http://user:secret@h", "put the token in a file"),
        ("http://h?token=secret", "write it to a file"),
        ("http://h?services=x", "did you mean service"),
        ("http://h?ttl_s=3", "workers would flap; give ttl_s=15"),
        ("http://h?ttl_s=x", "give seconds"),
        ("http://h?heartbeat_s=nan", "give seconds"),
        ("http://h?reap_s=10", "60 s at the earliest"),
        ("http://h?wait_s=700", "600 s at most"),
        ("http://h?service=a/b", "letters, digits and hyphens"),
        ("https://h?cert=x", "both cert and key"),
        ("http://h?ca=x", "a port of its own"),
        ("http://h?token_file=/none", "cannot be read"),
        ("http://h?last_good=/", "names no file"),
        ("http://h?last_good=%00x", "names no file"),
        ("http://h?last_good=~nobody-of-that-name/x", "names no file"),
    ],
)
def test_urls_that_cannot_work(rest: str, mend: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_registry(f"consul:{rest}")
    assert mend in str(caught.value)
    assert "secret" not in str(caught.value)
    assert mend in broken(f"consul:{rest}")


def test_every_fault_is_one_sentence_with_its_mend() -> None:
    for fault in Fault:
        told = str(ConsulError(fault, "http://h:8500"))
        assert told.count("\n") == 0
        assert ";" in fault.value, "what is wrong; what to do"


def test_a_token_file_that_is_gone_ends_no_watch(guarded: Guarded) -> None:
    """It is being replaced at the moment when the old token is refused."""
    writer, reader = guarded.token("writer", WRITER), guarded.token("vanishing", READER)
    settings = replace(ConsulRegistry(guarded.url(f"token_file={reader}").removeprefix("consul:")).settings, times=FAST)
    told = Told()
    registering = ConsulRegistry(replace(settings, token_file=writer))
    with closing(ConsulRegistry(settings).watch(told)) as watch:
        guarded.revoke(reader)
        (guarded.folder / "vanishing").unlink()
        with closing(registering.register(instance("late"))):
            wait_until(lambda: watch.statistics().failures >= 2, SOON_S)
            guarded.token("vanishing", READER)
            told.wait(lambda changes: Insert(instance("late")) in changes, SOON_S)
