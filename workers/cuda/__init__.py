"""GPUs: the driver by its C interface, the management library, a fake of both, fault classes, and the watcher.

An executor opens `driver` or `fake` through `workers/device.py`; the node has a child, `watcher`, that asks `nvml` or
the fake. Read `workers/cuda/driver.py` first.
"""
