"""The door to Redis: connecting with its checks, and faults told in this project's words."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 - Redis's own, caught under its name
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,  # noqa: A004
)
from redis.retry import Retry

from vrampool.errors import SettingsError, UnreachableError

P = ParamSpec("P")
R = TypeVar("R")

#: LMOVE, LPOS and CLIENT INFO came with it; RQ moves jobs safely only from here on.
OLDEST_VERSION = (6, 2)
#: Seconds of one try. Below the 5 s after which redis-py gives up by default, so that this is the time that counts.
SOCKET_TIMEOUT_S = 4.0
HEALTH_CHECK_S = 25
#: They hide a restart of Redis. Each repeats a command whose reply was lost: every script here may run twice.
RETRIES = 3


class TransientRedisError(UnreachableError):
    """Raised when a call failed because Redis is away, starts, is full, or refuses us. Calling again later is right."""


def connect(url: str, *, role: str) -> redis.Redis:
    """Connect to Redis and check that nothing can be lost there.

    Round trips: 3, once.

    Args:
        url: "redis://host:6379/0", "rediss://...", or "unix:///path/to/socket".
        role: What the process does ("worker", "coordinator"); shown by CLIENT LIST.

    Raises:
        SettingsError: this is no URL of a Redis.
        UnreachableError: Redis does not answer, refuses us, is too old, or may evict keys.
    """
    shown = _without_password(url)
    client = _client(url, shown, role)
    try:
        server: dict[str, Any] = client.info("server")
        policy = _eviction_policy(client)
    except (ConnectionError, TimeoutError, ResponseError, OSError) as error:
        client.close()
        raise UnreachableError(f"Redis at {shown} {_say(error)}") from error
    version = str(server.get("redis_version", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST_VERSION:
        client.close()
        raise UnreachableError(f"Redis at {shown} is version {version}; version 6.2 or newer is needed")
    if policy != "noeviction":
        client.close()
        raise UnreachableError(
            f"Redis at {shown} has maxmemory-policy {policy}: it would drop waiting trials without a word; "
            "set it with `redis-cli CONFIG SET maxmemory-policy noeviction`"
        )
    client.set_retry(Retry(ExponentialBackoff(cap=1.0, base=0.05), RETRIES))
    return client


def _client(url: str, shown: str, role: str) -> redis.Redis:
    options: dict[str, Any] = {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": SOCKET_TIMEOUT_S,
        "health_check_interval": HEALTH_CHECK_S,
        "retry": Retry(NoBackoff(), 0),  # whoever just starts wants to hear at once that there is nothing
        "client_name": "vrampool-" + re.sub(r"[^A-Za-z0-9_.-]", "-", role),
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    try:
        return redis.Redis.from_url(url, **options)
    except (ValueError, TypeError):
        raise SettingsError(
            f"{shown!r} is no URL of a Redis: write redis://host:6379/0, with special characters of a password as %40"
        ) from None


def _without_password(url: str) -> str:
    """Return a URL fit for a message. Whatever stands before the last '@' may be a password with a '/' in it."""
    scheme, mark, rest = url.partition("?")[0].rpartition("://")
    user, at, host = rest.rpartition("@")
    name, colon, _ = user.partition(":")
    return f"{scheme}{mark}{name}{':***' if colon else ''}{at}{host}"


def _eviction_policy(client: redis.Redis) -> str:
    # CONFIG would tell it too, but shows much more: no role of ours needs it, and managed servers forbid it.
    return str(client.info("memory").get("maxmemory_policy", "noeviction"))


def _say(error: Exception) -> str:
    """Tell a fault of Redis, with what to do. redis-py puts host and port into its texts, but never a password."""
    if isinstance(error, (AuthenticationError, NoPermissionError)) or "NOAUTH" in str(error):
        return f"refuses us ({error}): give user and password in the URL, with the rights that SECURITY.md names"
    if isinstance(error, BusyLoadingError):
        return "is still loading its data: try again in a moment"
    if isinstance(error, OutOfMemoryError):
        return "is full (maxmemory reached): give it more memory"
    if isinstance(error, ReadOnlyError):
        return "is a read-only replica: give the URL of the primary"
    if "MISCONF" in str(error):
        return f"cannot write to its disk: {error}"
    return f"does not answer ({error}): start it, or check its URL (--redis, VRAMPOOL_REDIS)"


def talks_to_redis(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise `TransientRedisError` where Redis cannot do what was asked; other faults pass."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (ConnectionError, TimeoutError, OutOfMemoryError, ReadOnlyError, NoPermissionError) as error:
            raise TransientRedisError(f"Redis {_say(error)}") from error
        except ResponseError as error:
            # Inside a script these arrive as plain errors that carry the code in their text.
            if any(code in str(error) for code in ("MISCONF", "OOM ", "READONLY", "LOADING", "MASTERDOWN", "NOAUTH")):
                raise TransientRedisError(f"Redis {_say(error)}") from error
            raise

    return call
