"""Measure lancelsm, and for comparison a peer in the same run: `python -m benchmarks --help`."""
