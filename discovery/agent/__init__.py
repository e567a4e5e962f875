"""The registry `consul:URL`: what is known of Consul's agents, apart from the library that talks to them.

`discovery/consul.py` alone uses py-consul. Read `url` for the settings, `watch` and `registration` for the two threads,
`follower` and `tenure` for what they decide, `meta` for what an entry says, `faults` for what can go wrong.
"""
