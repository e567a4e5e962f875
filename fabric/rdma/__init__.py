"""The rdma wire: the same frames over reliable queue pairs, bodies written by the NIC straight into the other side.

Entry points: `engine.Engine.open(loop, config)` has the device and its completions, on an asyncio loop that runs;
`channel.RdmaChannel.open(engine, bootstrap, client_id, deadline, expect)` is the caller's end; `listener.RdmaListener(
engine, open_channel, facts)` the node's, whose `bootstrap(client_id, payload)` answers what the caller's `bootstrap`
sent. That call is passed in, since this wire knows no other. Read `config.py` and `choice.py` first, then `wire.py` for
what travels, `connection.py` for how; `docs/rdma.md` has the pictures.
"""
