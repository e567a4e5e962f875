"""Who is there: instances, their changes, and the registries that tell of them.

A registry is a hint and never on the request path: the router lives on its last known good list and on what its links
see. Read `instance` for the values, `registry` for the contract and the URLs, then `directory` and `static`.
"""
