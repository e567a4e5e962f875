"""TLS on the rpc wire: gRPC and the lane check the same certificates, or nobody gets in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fabric.errors import Fate, NodeLost, OverspillError
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig, TlsFiles
from fabric.rpc_fallback.lane_tls import TlsSocket
from fabric.rpc_fallback.tls import caller_context
from tests.integration.rpc_calls import channel_to, collected, got, request, soon, tell_as_a_stranger, wanted
from tests.integration.rpc_certificates import Authority
from tests.integration.rpc_node import EchoNode, serving

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["collected"]


class Files:
    """Certificates of one test."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        other = Authority(folder, "other")
        self.server = self.authority.issue("server")
        self.mutual = TlsFiles(self.authority.file, self.server.certificate, self.server.key)
        self.caller = TlsFiles(self.authority.file, server_name="localhost")
        self.known = self.authority.issue("caller", authority=self.authority.file, server_name="localhost")
        self.stranger = other.issue("stranger", authority=self.authority.file, server_name="localhost")
        self.wrong_authority = TlsFiles(other.file, server_name="localhost")
        self.wrong_name = TlsFiles(self.authority.file, server_name="elsewhere")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mtls"])
def test_both_ways_are_encrypted(files: Files, mutual: bool) -> None:
    node = EchoNode()
    config = RpcServerConfig(tls=files.mutual if mutual else files.server)
    with serving(node, config) as (_, port):
        for by_name in (True, False):
            tls = files.known if mutual else files.caller
            if not by_name:  # the certificate names 127.0.0.1 as well
                tls = TlsFiles(tls.authority, tls.certificate, tls.key)
            with channel_to(port, RpcConfig(tls=tls)) as channel:
                for number, size in enumerate((64, 100_000, 300_000, 5_000_000), 1):
                    call = request(number, size)
                    answer = channel.call(call, soon())
                    assert got(answer) == wanted(call)
                    assert answer.lane
                lane = channel._lanes._idle[0]
                assert isinstance(lane._sock, TlsSocket)


@pytest.mark.parametrize("who", ["wrong_authority", "wrong_name", "plain", "no certificate", "stranger"])
def test_who_does_not_get_in(files: Files, who: str) -> None:
    mutual = who in {"no certificate", "stranger"}
    tls = {
        "wrong_authority": files.wrong_authority,
        "wrong_name": files.wrong_name,
        "plain": None,
        "no certificate": files.caller,
        "stranger": files.stranger,
    }[who]
    node = EchoNode()
    with serving(node, RpcServerConfig(tls=files.mutual if mutual else files.server)) as (_, port):
        with pytest.raises(OverspillError) as caught:
            RpcChannel.open(f"127.0.0.1:{port}", 1, soon(3.0), RpcConfig(tls=tls))
        assert isinstance(caught.value, NodeLost)
        assert caught.value.fate is Fate.NEVER_RAN
        assert not node.opened


@pytest.mark.parametrize("who", ["wrong_authority", "wrong_name", "no certificate", "stranger", "plain"])
def test_the_lane_checks_too(files: Files, who: str) -> None:
    """A caller whose gRPC channel is in, but whose lane would be let in by nobody, stays on the stream."""
    node = EchoNode()
    serves = serving(node, RpcServerConfig(tls=files.mutual))
    with serves as (_, port), channel_to(port, RpcConfig(tls=files.known)) as channel:
        lanes = channel._lanes
        if who == "plain":
            lanes._context = None
        elif who == "wrong_name":
            lanes._config = RpcConfig(tls=files.wrong_name)
        else:
            bad = {"wrong_authority": files.wrong_authority, "stranger": files.stranger}.get(who, files.caller)
            lanes._context = caller_context(bad)
        call = request(1, 300_000)
        answer = channel.call(call, soon())
        assert not answer.lane
        assert got(answer) == wanted(call)


def test_garbage_instead_of_tls_on_the_lane(files: Files) -> None:
    serves = serving(EchoNode(), RpcServerConfig(tls=files.server, handshake_s=0.5))
    with serves as (_, port), channel_to(port, RpcConfig(tls=files.caller)) as channel:
        for words in (b"", b"\0" * 300, b"\x16\x03\x01\x02\x00\x01"):
            tell_as_a_stranger(channel._lanes._port, words)
        call = request(1, 300_000)
        answer = channel.call(call, soon())
        assert got(answer) == wanted(call)
        assert answer.lane
