"""vrampool: an Optuna storage-backed pool of GPU workers.

The public face; it defines nothing. Names are imported when they are first used, so that the trial's own process,
which needs only the messages, does not load Optuna and Redis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vrampool._version import __version__ as __version__

if TYPE_CHECKING:
    from vrampool.checkpoints import Checkpoint as Checkpoint
    from vrampool.checkpoints import checkpoint as checkpoint
    from vrampool.errors import DeviceConflictError as DeviceConflictError
    from vrampool.errors import DeviceLostError as DeviceLostError
    from vrampool.errors import InputError as InputError
    from vrampool.errors import ObjectiveError as ObjectiveError
    from vrampool.errors import ObjectiveFailedError as ObjectiveFailedError
    from vrampool.errors import OutOfScopeError as OutOfScopeError
    from vrampool.errors import RequestError as RequestError
    from vrampool.errors import SettingsError as SettingsError
    from vrampool.errors import StudyError as StudyError
    from vrampool.errors import StudyFailedError as StudyFailedError
    from vrampool.errors import UnreachableError as UnreachableError
    from vrampool.errors import VrampoolError as VrampoolError
    from vrampool.handle import Handle as Handle
    from vrampool.handle import Progress as Progress
    from vrampool.pool import Pool as Pool
    from vrampool.settings import Settings as Settings

_HOMES = {
    "Checkpoint": "vrampool.checkpoints",
    "checkpoint": "vrampool.checkpoints",
    "Handle": "vrampool.handle",
    "Pool": "vrampool.pool",
    "Progress": "vrampool.handle",
    "Settings": "vrampool.settings",
    "DeviceConflictError": "vrampool.errors",
    "DeviceLostError": "vrampool.errors",
    "InputError": "vrampool.errors",
    "ObjectiveError": "vrampool.errors",
    "ObjectiveFailedError": "vrampool.errors",
    "OutOfScopeError": "vrampool.errors",
    "RequestError": "vrampool.errors",
    "SettingsError": "vrampool.errors",
    "StudyError": "vrampool.errors",
    "StudyFailedError": "vrampool.errors",
    "UnreachableError": "vrampool.errors",
    "VrampoolError": "vrampool.errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vrampool' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
