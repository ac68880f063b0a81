"""Benchmarks: `make bench` prints a table. Ratios in one run; absolute times only where a person feels them."""
