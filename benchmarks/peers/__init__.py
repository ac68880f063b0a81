"""The pool beside what people would use instead, each on the same objective: `python -m benchmarks.peers`."""
