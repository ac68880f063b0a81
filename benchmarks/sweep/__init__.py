"""One sweep of mixed trials on one NVIDIA card, run in several ways: by hand, by an oracle, and by the pool."""
