"""Benchmarks: run one as `python -m benchmarks.search`."""
