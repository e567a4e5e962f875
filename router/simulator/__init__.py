"""A simulated fleet in which routing policies are compared: seeded, event by event, many routers, stale loads.

It never touches a socket or a clock. Read `workload` first, then `node`, `world`, `measure` and `compare`.
"""
