"""ETR: when each order would arrive if this rider took this route.

The machine-learning task of a dispatch round. Route planning answers a rider-order pair with a route; these networks
answer that route with the minute at which the rider reaches each of its stops. `network.py` says which parameters
exist, `graph.py` writes them as an ONNX file, `reference.py` computes the same in NumPy, and `train.py` is the only
door to torch. Read `features.py` first: it is the contract between a planned route and the tensors.
"""
