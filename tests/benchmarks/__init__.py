"""Benchmarks: run with `make bench`. Method and reading: docs/benchmarks.md."""
