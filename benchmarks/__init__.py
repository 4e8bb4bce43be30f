"""Measurements of lancelsm, each beside its peer's in the same run. `python -m benchmarks --help`."""
