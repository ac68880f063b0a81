"""Quiet Optuna, a Valkey, and no settings of the developer's own."""

from __future__ import annotations

from support.surroundings import own_settings, quiet_optuna
from support.valkey import valkey

__all__ = ["own_settings", "quiet_optuna", "valkey"]
