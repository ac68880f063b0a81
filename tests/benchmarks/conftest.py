"""The benchmarks are no installed package: they are found in the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

from support.surroundings import own_settings, quiet_optuna
from support.valkey import valkey  # noqa: F401

__all__ = ["own_settings", "quiet_optuna"]

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
