"""RQ's tests want a Redis at its usual port, which may be somebody's: every process of the suite finds its own one."""

from __future__ import annotations

import os
from typing import Any

if "SUITE_REDIS_PORT" in os.environ:
    import redis.connection

    _connect = redis.connection.Connection.__init__

    def _init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("port", 6379) == 6379:
            kwargs["port"] = int(os.environ["SUITE_REDIS_PORT"])
        _connect(self, *args, **kwargs)

    redis.connection.Connection.__init__ = _init  # type: ignore[method-assign]
