"""The rpc wire: the fabric's frames over gRPC, with a lane of plain sockets for large bodies.

It is what moves requests between machines wherever RDMA is missing or broken. `channel` is the caller's end, `server`
the node's port (a process of its own); both stand on `wire` (what travels), `lane` (the socket of large bodies) and
`status` (gRPC's codes as our errors). It knows no other wire: the port gets its way to the node passed in.
Read `fabric/rpc_fallback/wire.py` first.
"""
