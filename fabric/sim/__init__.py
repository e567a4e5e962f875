"""A seeded network in memory: the same channels over loss, delay, reordering, duplicates, partitions and late writes.

One `SimOptions` and one seed decide everything; the same two give the same journal, line for line. On a simulated clock
a minute takes milliseconds, and on a real one the same objects run under the contract suite of all wires. Nothing here
is used in production. Read `clock`, then `network`, `node`, `channel`, and `world`, which puts them together.
"""
