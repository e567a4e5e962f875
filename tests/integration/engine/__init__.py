"""A Docker engine for tests on machines that have none: Debian's, unpacked into a cache folder, in its own namespaces.

Its processes, mounts, bridges and packet filters live in pid, mount and network namespaces that end with it, so nothing
of it can be left behind, and nothing of the machine is changed: no package is installed, no registry is asked. What it
builds stays in that cache folder. Read `tests/integration/engine/daemon.py` next.
"""
