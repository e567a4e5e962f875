"""Moves one request to one peer and its reply back, over the best live wire.

The base of the room (errors, deadline, dtypes, message, layout, frame, memory, transport, config) knows no wire. The
wires (`local`, `rdma`, `rpc_fallback`, `sim`) know the base and never each other; `link` knows them through the
protocols of `transport` only. The room never decides who gets a request: that is the router's. Read `message` next.
"""
