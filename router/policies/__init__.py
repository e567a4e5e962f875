"""Policies that the simulator compares: coin tosses, those of the field, ours, and oracles.

They decide for simulated routers only. Ours is the live router's own core behind the same interface. Read `base` first,
then `table`, which names them all.
"""
