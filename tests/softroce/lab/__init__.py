"""A place to try the RDMA wire without an RDMA card: guests under QEMU with Debian's kernel and its soft-RoCE driver.

`python -m tests.softroce.lab` builds it and runs commands in it; tests use it through `tests/softroce/lab/remote.py`.
It downloads Debian's packages through the machine's own apt, and wheels through pip, once; all it makes lies in one
cache folder outside of the checkout. It never touches the machine's network. Read `tests/softroce/lab/lab.py` next.
"""
