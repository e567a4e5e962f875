"""What answers and exceptions mean, as agents of different versions and the libraries below put them."""

from __future__ import annotations

import pickle

import pytest

from discovery.agent.faults import ConsulError, Fault, answer_fault, detail_of, raised_fault
from fabric.errors import RegistryUnavailable

ENTERPRISE = 'Bad request: Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature'


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        # Recorded from 1.8.7.
        (200, "[]", None),
        (500, 'Unknown check "zzz"', Fault.UNKNOWN_CHECK),
        (404, "unknown service ID: zzz", Fault.UNKNOWN_CHECK),
        (500, 'Unknown service {"zzz" {}}', Fault.UNKNOWN_CHECK),
        (403, "ACL not found", Fault.ACL_UNKNOWN),
        (403, "Permission denied: Missing service:write on overspill", Fault.DENIED),
        (401, "ACL support disabled", Fault.NO_ACL),
        (500, "write /data/checks/b1d1-969f: no space left on device", Fault.DISK),
        (500, "No cluster leader", Fault.NO_LEADER),
        (500, "No known Consul servers", Fault.NO_LEADER),
        (500, "rpc error making call: EOF", Fault.NO_LEADER),
        (500, "No path to datacenter", Fault.UNKNOWN_DC),
        (400, ENTERPRISE, Fault.ENTERPRISE),
        (400, "Client sent an HTTP request to an HTTPS server.\n", Fault.NEEDS_TLS),
        (404, "", Fault.NO_CONSUL),
        # As current agents put it, by their sources.
        (404, 'Unknown check ID "a-1". Ensure that the check ID is passed, not the check name.', Fault.UNKNOWN_CHECK),
        (
            404,
            'Unknown service ID "a". Ensure that the service ID is passed.',
            Fault.UNKNOWN_CHECK,
        ),
        (403, "rpc error making call: ACL not found", Fault.ACL_UNKNOWN),
        (500, "rpc error making call: Permission denied", Fault.DENIED),
        (429, "", Fault.TOO_MANY),
        (400, 'Invalid query parameter: "partition" - Partitions are a Consul Enterprise feature', Fault.ENTERPRISE),
        # What stands between, and what is none of Consul's.
        (301, "", Fault.REDIRECTED),
        (404, "<html>not found</html>", Fault.NO_CONSUL),
        (502, "bad gateway", Fault.BROKEN),
        (418, "teapot", Fault.BAD_REQUEST),
    ],
)
def test_answers(status: int, body: str, fault: Fault | None) -> None:
    assert answer_fault(status, body) is fault


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ("ConnectionError: … NewConnectionError: [Errno 111] Connection refused", Fault.REFUSED),
        ("ConnectTimeout: … timed out", Fault.TIMEOUT),
        ("ReadTimeout: HTTPConnectionPool: Read timed out. (read timeout=5)", Fault.TIMEOUT),
        ("ConnectionError: ('Connection aborted.', RemoteDisconnected('…'))", Fault.RESET),
        ("ConnectionError: ('Connection aborted.', ConnectionResetError(104, '…'))", Fault.RESET),
        ("ConnectionError: … NameResolutionError: Failed to resolve 'x'", Fault.UNKNOWN_HOST),
        ("SSLError: … [SSL: WRONG_VERSION_NUMBER] wrong version number", Fault.NO_TLS),
        ("SSLError: … [SSL: CERTIFICATE_VERIFY_FAILED] … certificate has expired", Fault.EXPIRED),
        ("SSLError: … [SSL: CERTIFICATE_VERIFY_FAILED] … Hostname mismatch", Fault.WRONG_NAME),
        ("SSLError: … [SSL: CERTIFICATE_VERIFY_FAILED] … self-signed certificate", Fault.UNTRUSTED),
        ("SSLError: … [SSL: CERTIFICATE_VERIFY_FAILED] … Missing Authority Key Identifier", Fault.NOT_STRICT),
        ("SSLError: … [SSL: CERTIFICATE_VERIFY_FAILED] … CA cert does not include key usage", Fault.NOT_STRICT),
        ("SSLError: … [SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] …", Fault.NEEDS_CERT),
        ("ConnectionError: … BadStatusLine: \x16\x03", Fault.NOT_HTTP),
        ("ChunkedEncodingError: … IncompleteRead(2 bytes read, 98 more expected)", Fault.RESET),
        ("ValueError: the answer has more than 268435456 bytes", Fault.GARBLED),
        ("TooManyRedirects: Exceeded 0 redirects.", Fault.REDIRECTED),
        ("ZeroDivisionError: division by zero", Fault.BROKEN),
    ],
)
def test_exceptions(told: str, fault: Fault) -> None:
    assert raised_fault(told) is fault


def test_an_error_is_one_sentence_and_travels() -> None:
    error = ConsulError(Fault.DENIED, "http://h:8500", detail_of("Permission\n denied"))
    assert str(error).startswith("Consul at http://h:8500 (it says: Permission denied): its ACLs deny this")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, RegistryUnavailable)
    assert str(copy) == str(error)


def test_pages_and_binaries_are_not_quoted() -> None:
    assert detail_of("<html>") == ""
    assert detail_of("\x00\x01") == ""
    assert len(detail_of("x" * 999)) <= 120
