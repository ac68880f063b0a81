"""The environment of a trial's process: the user's, bound to the device, without the pool's own secrets."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from vrampool.settings import PREFIX, Settings
from vrampool_worker.devices import Device

#: RQ's CLI reads its Redis URL from these.
_POOL_NAMES = frozenset({"REDIS_URL", "RQ_REDIS_URL", "RQ_CONFIG"})


def child_environment(env: Mapping[str, str], device: Device, settings: Settings) -> dict[str, str]:
    """Return the variables a child is spawned with.

    Everything the user has set passes, for objectives need PATH, HF_HOME and many others; what belongs to the pool
    does not: its own variables, and any value that holds the password of its Redis or storage, or its secret.
    """
    passed = {name.strip() for name in settings.env_pass.split(",") if name.strip()}
    secrets = {word for word in (settings.secret, _password(settings.redis), _password(settings.storage)) if word}
    child = {}
    for name, value in env.items():
        own = name.startswith(PREFIX) or name in _POOL_NAMES
        if name in passed or not (own or any(secret in value for secret in secrets)):
            child[name] = value
    child |= device.child_env()
    return child


def _password(url: str | None) -> str | None:
    if not url:
        return None
    try:
        return urlsplit(url).password
    except ValueError:
        return None
