"""All wires to one peer, as one thing to call: which wire is live, what fails over when, and how requests move.

`table` is the failover table and `machine` what counts beside it, both pure. `wiring` and `pings` carry it out, `wires`
opens channels, `link` and `moves` call requests, and `loop` is the one background thread of a client process. Nothing
here knows who should get a request: the router does. Read `table` first; `docs/state-machines.md` is drawn from it.
"""
