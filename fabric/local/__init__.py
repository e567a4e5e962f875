"""The local wire: a `SOCK_SEQPACKET` Unix socket for small frames, a sealed memfd arena for tensors.

A peer's death is seen at once, its user id is checked by the kernel, and no byte of a tensor passes through the socket.
The node's side (`reactor`, `listener`) imports neither numpy nor asyncio, since it runs in the small process. The wire
never decides who may run what: it hands checked frames to a handler. Read `docs/protocol.md`, then `sockets`.
"""
