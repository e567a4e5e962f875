"""What can run a model: a Python class, or ONNX Runtime. Each library lives behind its own file, imported when needed.

Read `base` for the contract, then the backend you want to know.
"""
