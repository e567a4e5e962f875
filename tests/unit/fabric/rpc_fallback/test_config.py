"""Settings, addresses and the health service's two messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabric.errors import ConfigError
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig, TlsFiles, address_of, host_of
from fabric.rpc_fallback.health import Serving, response, service_name
from fabric.rpc_fallback.malloc import keep_freed_memory
from fabric.rpc_fallback.tls import caller_credentials, server_credentials


@pytest.mark.parametrize("wrong", [{"port": -1}, {"port": 65536}, {"lane_port": 70000}, {"peers_max": 0}])
def test_wrong_server_settings(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RpcServerConfig(**wrong)


@pytest.mark.parametrize("wrong", [{"lanes_max": -1}, {"threads_max": 0}])
def test_wrong_caller_settings(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RpcConfig(**wrong)


@pytest.mark.parametrize(("host", "address"), [("10.0.0.1", "10.0.0.1:80"), ("::1", "[::1]:80"), ("a.b", "a.b:80")])
def test_addresses_and_hosts(host: str, address: str) -> None:
    assert address_of(host, 80) == address
    assert host_of(address) == host


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:http"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        host_of(address)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (TlsFiles(), "authority"),
        (TlsFiles(Path("/nowhere/a.pem")), "cannot be read"),
        (TlsFiles(Path("/nowhere/a.pem"), certificate=Path("c.pem")), "key"),
        (TlsFiles(Path(__file__)), "no PEM"),
    ],
)
def test_wrong_files_of_a_caller(files: TlsFiles, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        caller_credentials(files)


@pytest.mark.parametrize(
    ("files", "says"),
    [(TlsFiles(), "certificate"), (TlsFiles(None, Path(__file__), Path(__file__)), "no PEM")],
)
def test_wrong_files_of_a_server(files: TlsFiles, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        server_credentials(files)


@pytest.mark.parametrize(
    ("request_bytes", "name"),
    [
        (b"", ""),
        (b"\x0a\x02ab", "ab"),
        (b"\x0a\x03ab", None),
        (b"\x0a", None),
        (b"\x12\x02ab", None),
        (b"\x0a\x80", None),
    ],
)
def test_health_requests(request_bytes: bytes, name: str | None) -> None:
    assert service_name(request_bytes) == name


def test_health_response() -> None:
    assert response(Serving.SERVING) == b"\x08\x01"


def test_malloc_says_whether_it_was_told() -> None:
    assert keep_freed_memory() in {True, False}
