"""gRPC's status codes as our errors: what they mean for the request, and what to do.

gRPC says what became of a call on the wire, not whether it ran, so most fates are `unknown`. It is `never_ran` only
where gRPC itself refused before anything was sent, or our port did before it asked the node. This module never
retries. Read `fabric/rpc_fallback/channel.py` next.
"""

from __future__ import annotations

import grpc

from fabric.errors import (
    AccessDenied,
    Cancelled,
    DeadlineExceeded,
    Fate,
    NodeLost,
    OverspillError,
    ProtocolError,
    ResourceExhausted,
)

Code = grpc.StatusCode

NOT_CONNECTED = (
    "failed to connect to all addresses",
    "DNS resolution failed",
    "errors resolving",  # the same in newer versions
    "no children to choose from",
)
"""How gRPC begins an UNAVAILABLE that was met before a connection stood: nothing was sent. Wordings we do not know
count as sent."""

CLOSED = ("Socket closed", "Connection reset by peer")
"""Why there is no connection where somebody listens and hangs up: most often one end alone speaks TLS."""

HANDSHAKE = "handshake failed"
"""What stands in such an UNAVAILABLE when TLS is the reason; the rest of it is OpenSSL's, and helps nobody."""
OTHER_NAME = "hostname verification check failed"
"""The same where the certificate is good and names another host."""

_TABLE: dict[grpc.StatusCode, tuple[type[OverspillError], Fate, str]] = {
    Code.CANCELLED: (Cancelled, Fate.UNKNOWN, "the call was cancelled; send it again if it is still wanted"),
    Code.DEADLINE_EXCEEDED: (
        DeadlineExceeded,
        Fate.UNKNOWN,
        "the time given with the request is over; give it more, or ask a node that is less busy",
    ),
    Code.UNAVAILABLE: (NodeLost, Fate.UNKNOWN, "the connection to the node was lost; try another node"),
    Code.RESOURCE_EXHAUSTED: (
        ResourceExhausted,
        Fate.NEVER_RAN,
        "the node's port has as many calls as it takes; try again later or elsewhere",
    ),
    Code.UNAUTHENTICATED: (AccessDenied, Fate.NEVER_RAN, "the node does not know this session; open the channel again"),
    Code.PERMISSION_DENIED: (AccessDenied, Fate.NEVER_RAN, "the node's proxy refused the call; ask its operator"),
    Code.UNIMPLEMENTED: (
        ProtocolError,
        Fate.NEVER_RAN,
        "the server at this address speaks gRPC, but is no Overspill node; correct the address",
    ),
    Code.INTERNAL: (ProtocolError, Fate.UNKNOWN, "the connection to the node broke its own rules; update both ends"),
    Code.DATA_LOSS: (ProtocolError, Fate.UNKNOWN, "the connection to the node lost data; try another node"),
}
_OTHERWISE = (ProtocolError, Fate.UNKNOWN, "the node's port answered with a status that it never uses; update it")


def error_of(code: grpc.StatusCode, details: str) -> OverspillError:
    """The error that a status means; gRPC's own words stand in brackets, for whoever reads logs."""
    cls, fate, sentence = _TABLE.get(code, _OTHERWISE)
    if code is Code.UNAVAILABLE and details.startswith(NOT_CONNECTED) and HANDSHAKE in details.lower():
        return cls(
            "no connection to the node could be made, as the two ends do not accept each other's certificates;"
            " check the authority, the host's name in the certificate, and that both ends use TLS",
            Fate.NEVER_RAN,
        )
    if code is Code.UNAVAILABLE and details.startswith(NOT_CONNECTED) and OTHER_NAME in details.lower():
        return cls(
            "the node's certificate does not name the host that this end connected to; connect to a name that it has,"
            " or say which one it has (server_name of TlsFiles, or --tls-name)",
            Fate.NEVER_RAN,
        )
    if code is Code.UNAVAILABLE and details.startswith(NOT_CONNECTED):
        # What stands last is the system's own reason, such as "Connection refused"; before it gRPC tells its own way.
        why = details.rpartition(": ")[2].rstrip("]")[:200]
        sentence = "no connection to the node could be made; check its address, or try another"
        if why in CLOSED:
            sentence = (
                "the connection was closed while it was made; check whether the node asks for TLS or a certificate,"
                " and that the address is that of a node"
            )
        return cls(f"{sentence} ({why})", Fate.NEVER_RAN)
    return cls(f"{sentence} ({code.name}: {details[:200]})", fate)
