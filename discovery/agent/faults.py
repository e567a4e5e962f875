"""What can go wrong between us and Consul: one table from what was seen to a kind, and one sentence for each kind.

Consul tells its troubles in prose that differs between versions, its clients in exceptions of three libraries. Here
each becomes a `Fault`, so that nobody else reads prose, and one sentence that says the mend. A fault never decides what
happens next: `discovery/agent/follower.py` and `discovery/agent/tenure.py` do.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import re
from enum import Enum

from fabric.errors import RegistryUnavailable


class Fault(Enum):
    """One kind of trouble."""

    REFUSED = "nothing listens there; start a Consul agent, or check the address"
    UNKNOWN_HOST = "no such host is known; check the name"
    UNREACHABLE = "no network leads there; check the address and the firewall"
    TIMEOUT = "it did not answer in time; see whether the agent hangs, or a firewall drops what is sent"
    RESET = (
        "it cut the connection; the agent was restarted, has over 200 connections from this address"
        " (http_max_conns_per_client), or is no agent's HTTP port (8500)"
    )
    NOT_HTTP = (
        "what listens there speaks no HTTP; give the agent's HTTP port (8500), not the one of servers, gossip or DNS"
    )
    NEEDS_TLS = "it speaks HTTPS there; give consul:https://HOST:PORT?ca=FILE"
    NO_TLS = "it speaks plain HTTP there; give consul:http://HOST:PORT, or the agent's HTTPS port"
    UNTRUSTED = "its certificate is signed by no authority that is trusted here; give the cluster's with ca=FILE"
    NOT_STRICT = (
        "its certificate, or its authority's, lacks what Python asks of one from 3.13 on (RFC 5280: key identifiers,"
        " key usage); issue both anew, as `consul tls` does"
    )
    WRONG_NAME = (
        "its certificate names another host; connect by the name that it holds (agents hold localhost and 127.0.0.1)"
    )
    EXPIRED = "its certificate is out of date, or a clock is wrong; renew it"
    NEEDS_CERT = "it asks for a certificate of ours and took none; give cert=FILE and key=FILE, signed by its authority"
    TLS_BROKEN = "the TLS handshake failed; check ca, cert, key and the agent's tls_min_version"
    BAD_FILE = "a file of the TLS settings cannot be read; check ca, cert and key"
    NO_LEADER = (
        "its servers have no leader; bring back a majority of them (a new cluster needs bootstrap_expect servers)"
    )
    UNKNOWN_DC = "no way leads to that datacenter; check dc=NAME against `consul catalog datacenters`"
    ENTERPRISE = "namespaces and partitions exist in Consul Enterprise only; leave ns and partition out"
    ACL_UNKNOWN = (
        "its ACLs do not know our token, which was revoked or belongs to another cluster; put a valid one in token_file"
    )
    DENIED = (
        "its ACLs deny this; the token needs service_prefix read and node_prefix read to watch, and service write to"
        " register"
    )
    FILTERED = (
        "its ACLs hide all entries, which looks like an empty list; give the token service_prefix read and node_prefix"
        " read"
    )
    NO_ACL = "its ACLs are off, so a token is of no use; leave token_file out"
    TOO_MANY = "it takes no more connections from this address; raise limits.http_max_conns_per_client (200)"
    UNKNOWN_CHECK = "it does not know our check; it is registered again by itself"
    BAD_REQUEST = "it does not understand the request; its version may be too old or too new"
    REDIRECTED = "it sends us elsewhere, as a proxy or a web page does; give the address of the agent itself"
    NO_CONSUL = "what answers there is no Consul agent; give the agent's HTTP port (8500)"
    GARBLED = "its answer cannot be read; see whether a proxy stands between"
    DISK = "the agent's disk is full or read-only, so it takes no entries; make room for its data_dir"
    FORKED = "this process was forked after it connected; open the registry again in the child"
    BROKEN = "it failed; read the agent's log"


class ConsulError(RegistryUnavailable):
    """Consul could not be asked, or said no. `fault` is the kind."""

    __slots__ = ("fault",)

    def __init__(self, fault: Fault, place: str, detail: str = "") -> None:
        said = f" (it says: {detail})" if detail else ""
        super().__init__(f"Consul at {place}{said}: {fault.value}")
        self.fault = fault

    def __reduce__(self) -> tuple[type[RegistryUnavailable], tuple[str]]:  # type: ignore[override]
        return RegistryUnavailable, (str(self),)


_ANSWERS: tuple[tuple[tuple[int, ...], str, Fault], ...] = (
    ((400,), r"HTTP request to an HTTPS server", Fault.NEEDS_TLS),
    ((400,), r"Enterprise feature|[Ii]nvalid query parameter: \"(ns|partition)\"", Fault.ENTERPRISE),
    ((401,), r"", Fault.NO_ACL),
    ((403,), r"ACL not found|token does not exist", Fault.ACL_UNKNOWN),
    ((403,), r"", Fault.DENIED),
    ((404, 500), r"(?i:unknown (check|service))|does not have associated TTL", Fault.UNKNOWN_CHECK),
    ((404,), r"", Fault.NO_CONSUL),
    ((429,), r"", Fault.TOO_MANY),
    ((500,), r"no space left|read-only file system|quota exceeded|failed persist", Fault.DISK),
    ((500, 503), r"ACL not found", Fault.ACL_UNKNOWN),
    ((500, 503), r"Permission denied", Fault.DENIED),
    ((500, 503), r"No path to datacenter", Fault.UNKNOWN_DC),
    ((500, 503), r"No cluster leader|No known Consul servers|rpc error|leadership|raft", Fault.NO_LEADER),
)
"""(status codes, what the body says, the kind), first match wins. 1.8.7 says 500 for a check that it does not know,
newer agents 404."""

_DETAIL_CHARS = 120


def answer_fault(status: int, body: str) -> Fault | None:
    """What a status and its body mean; None where all is well."""
    if 200 <= status < 300:
        return None
    for statuses, pattern, fault in _ANSWERS:
        if status in statuses and re.search(pattern, body):
            return fault
    if 300 <= status < 400:
        return Fault.REDIRECTED
    return Fault.BAD_REQUEST if status < 500 else Fault.BROKEN


def detail_of(body: str) -> str:
    """The first words of an answer, fit for a sentence."""
    words = " ".join(body.split())
    return words[:_DETAIL_CHARS] if words.isprintable() and "<" not in words[:1] else ""


_RAISED: tuple[tuple[str, Fault], ...] = (
    (r"WRONG_VERSION_NUMBER|HTTP_REQUEST|record layer failure|packet length too long", Fault.NO_TLS),
    (r"Hostname mismatch|doesn't match|IP address mismatch", Fault.WRONG_NAME),
    (r"certificate has expired|not yet valid", Fault.EXPIRED),
    (r"CERTIFICATE_VERIFY_FAILED.*(Key Identifier|key usage|Basic Constraints|name empty)", Fault.NOT_STRICT),
    (r"CERTIFICATE_VERIFY_FAILED", Fault.UNTRUSTED),
    (r"CERTIFICATE_REQUIRED|BAD_CERTIFICATE|HANDSHAKE_FAILURE|UNKNOWN_CA|ALERT_", Fault.NEEDS_CERT),
    (r"invalid path|Could not find the TLS|no certificate or crl|PEM lib|KEY_VALUES_MISMATCH", Fault.BAD_FILE),
    (r"SSLError|SSLEOFError", Fault.TLS_BROKEN),
    (r"NameResolutionError|gaierror|Name or service not known", Fault.UNKNOWN_HOST),
    (r"Connection refused", Fault.REFUSED),
    (r"No route to host|Network is unreachable", Fault.UNREACHABLE),
    (r"[Tt]imeout|timed out", Fault.TIMEOUT),
    (r"BadStatusLine|UnknownProtocol|LineTooLong|HeaderParsing", Fault.NOT_HTTP),
    (r"IncompleteRead|InvalidChunk", Fault.RESET),
    (r"reset by peer|RemoteDisconnected|Connection aborted|Broken pipe|Bad file descriptor", Fault.RESET),
    (r"TooManyRedirects|InvalidURL|LocationParse|InvalidSchema|UnicodeDecodeError", Fault.REDIRECTED),
    (r"InvalidHeader|more than \d+ bytes", Fault.GARBLED),
)
"""(what an exception of the libraries says, the kind), first match wins."""


def raised_fault(told: str) -> Fault:
    """What an exception means, told as its types and messages from the outermost to the first cause."""
    return next((fault for pattern, fault in _RAISED if re.search(pattern, told)), Fault.BROKEN)
