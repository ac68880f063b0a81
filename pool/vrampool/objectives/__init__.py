"""How an objective travels: by import path with the hash of its source, or as a bundle of its code.

`resolve` is for the side that submits, `load` for the process that runs the trial. The two share little, and the second
must stay light, so each is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vrampool.objectives.loading import load as load
    from vrampool.objectives.resolving import resolve as resolve
    from vrampool.objectives.sources import source_hash as source_hash

_HOMES = {
    "load": "vrampool.objectives.loading",
    "resolve": "vrampool.objectives.resolving",
    "source_hash": "vrampool.objectives.sources",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
