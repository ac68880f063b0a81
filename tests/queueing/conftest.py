"""Fixtures of the tests of queueing: a real Valkey, empty for each test."""

from support.valkey import connection, pool, valkey  # noqa: F401
