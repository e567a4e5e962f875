"""The front door: the Open Inference Protocol for stock clients, over anything that can infer.

A client in any language that speaks to Triton speaks to this: gRPC with all its calls, HTTP with the binary extension,
shared memory, statistics, metrics. What answers is an `Engine` (`frontdoor/engine.py`): a node, or a router. This room
runs no model and picks no worker. Read `frontdoor/engine.py` next.
"""
