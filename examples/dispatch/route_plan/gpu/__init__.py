"""route_plan in hand-written CUDA: one warp plans one task, each of its lanes follows one start.

Read source.py first, then the `.cu` files in its order, geometry.py and packing.py (launches and memory), solve.py (the
call) and cuda.py (the engine).
"""
