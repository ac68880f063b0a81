"""A pool of up to 1 000 devices in one process, in simulated time: `python -m benchmarks.simulate`."""
