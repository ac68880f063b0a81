from __future__ import annotations

from support.child_driver import driver  # noqa: F401
