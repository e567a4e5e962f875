"""Every status of gRPC becomes one of our errors, and none claims more than is known."""

from __future__ import annotations

import grpc
import pytest

from fabric.errors import DeadlineExceeded, Fate, NodeLost, OverspillError, ProtocolError, ResourceExhausted
from fabric.rpc_fallback.status import NOT_CONNECTED, error_of

Code = grpc.StatusCode


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_each_status_has_an_error_that_says_what_to_do(code: grpc.StatusCode) -> None:
    error = error_of(code, "details of gRPC's")
    assert isinstance(error, OverspillError)
    assert type(error) is not OverspillError
    assert "; " in str(error)
    assert code.name in str(error)


@pytest.mark.parametrize(
    ("code", "cls", "fate"),
    [
        (Code.UNAVAILABLE, NodeLost, Fate.UNKNOWN),
        (Code.DEADLINE_EXCEEDED, DeadlineExceeded, Fate.UNKNOWN),
        (Code.RESOURCE_EXHAUSTED, ResourceExhausted, Fate.NEVER_RAN),
        (Code.UNIMPLEMENTED, ProtocolError, Fate.NEVER_RAN),
        (Code.UNKNOWN, ProtocolError, Fate.UNKNOWN),
    ],
)
def test_fates(code: grpc.StatusCode, cls: type[OverspillError], fate: Fate) -> None:
    error = error_of(code, "Socket closed")
    assert type(error) is cls
    assert error.fate is fate


@pytest.mark.parametrize("details", NOT_CONNECTED)
def test_without_a_connection_nothing_ran(details: str) -> None:
    assert error_of(Code.UNAVAILABLE, details + "; last error: refused").fate is Fate.NEVER_RAN


def test_the_reason_why_there_is_no_connection_is_the_systems_own() -> None:
    refused = "; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused"
    assert str(error_of(Code.UNAVAILABLE, NOT_CONNECTED[0] + refused)).endswith("try another (Connection refused)")
    unknown = "errors resolving a:1: [field:hostname lookup error:address lookup failed for a:1: Domain name not found]"
    error = error_of(Code.UNAVAILABLE, unknown)
    assert str(error).endswith("try another (Domain name not found)")
    assert error.fate is Fate.NEVER_RAN


def test_a_node_that_hangs_up_may_want_tls() -> None:
    closed = "; last error: UNAVAILABLE: ipv4:127.0.0.1:7071: Socket closed"
    assert "asks for TLS" in str(error_of(Code.UNAVAILABLE, NOT_CONNECTED[0] + closed))


def test_a_certificate_of_another_name_is_told_as_that() -> None:
    other = "; last error: UNKNOWN: ipv4:127.0.0.1:7071: Hostname Verification Check failed."
    error = error_of(Code.UNAVAILABLE, NOT_CONNECTED[0] + other)
    assert "connect to a name that it has" in str(error)
    assert error.fate is Fate.NEVER_RAN


def test_long_details_are_cut() -> None:
    assert len(str(error_of(Code.INTERNAL, "x" * 5000))) < 400
