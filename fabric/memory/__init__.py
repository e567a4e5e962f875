"""Arenas, the slots in them, and the leases on those: memory that is handed from one process to another uncopied.

`slots` is the pure table of who holds and who writes what, `arena` the sealed memory itself, `lease` what a caller
holds. Nothing here knows a wire. Read `slots` first.
"""
