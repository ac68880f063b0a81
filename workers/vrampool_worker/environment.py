"""The environment of a trial's process: the user's, bound to the device, without the pool's own secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from vrampool.settings import PREFIX, Settings
from vrampool_worker.devices import Device

#: RQ's CLI reads its Redis URL from the first three; the clients of Redis and PostgreSQL their passwords from the rest.
_POOL_NAMES = frozenset(
    {"REDIS_URL", "RQ_REDIS_URL", "RQ_CONFIG", "REDISCLI_AUTH", "VALKEYCLI_AUTH", "PGPASSWORD", "PGPASSFILE"}
)


def child_environment(
    env: Mapping[str, str], device: Device, settings: Settings, *, secrets: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables a child is spawned with.

    Everything the user has set passes, for objectives need PATH, HF_HOME and many others; what belongs to the pool
    does not: its own variables, and any value that holds the password of its Redis or storage, or its secret.

    Args:
        env: The worker's own environment.
        device: The device it is bound to.
        settings: They hold the secrets that are looked for.
        secrets: More of them: what RQ was told and the settings do not know.
    """
    passed = {name.strip() for name in settings.env_pass.split(",") if name.strip()}
    hidden = {settings.secret or "", *secrets, *_passwords(settings.redis), *_passwords(settings.storage)} - {""}
    child = {}
    for name, value in env.items():
        own = name.startswith(PREFIX) or name in _POOL_NAMES
        if name in passed or not (own or any(secret in value for secret in hidden)):
            child[name] = value
    child |= device.child_env()
    return child


def _passwords(url: str | None) -> Iterator[str]:
    """Yield the passwords in a URL, as they are written there and as they are meant."""
    try:
        parts = urlsplit(url or "")
        found = [parts.password, *(value for name, value in parse_qsl(parts.query) if "password" in name)]
    except ValueError:
        return
    for word in found:
        if word:
            yield from (word, unquote(word))
