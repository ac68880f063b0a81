"""The page of a running pool, and its figures for Prometheus. Needs the extra `dashboard`."""
