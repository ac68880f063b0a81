"""What the processes of a local pool import sooner or later; the host does it once for all of them.

By name: the host is no part of what it runs, and the control plane never imports the data plane.
"""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import Iterable

#: Optuna imports these when it opens a database, and SQLAlchemy the dialect.
DATABASE = ("alembic.command", "alembic.config", "alembic.migration", "alembic.script", "sqlalchemy.dialects.sqlite")
COORDINATOR = ("vrampool.cli.serve", "vrampool.coordinator", "optuna.samplers", *DATABASE)
#: The coordinator has nothing of these. What workers need besides, they import beside the supervisor's look at devices.
SUPERVISOR = ("vrampool_worker.supervisor",)
CLIENT = ("vrampool.asking", "vrampool.client", *DATABASE)


def import_ahead(modules: Iterable[str]) -> None:
    """Import modules. Those of Optuna and SQLAlchemy hold a collector up that finds nothing to collect.

    Raises:
        Exception: of an import.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)  # as Optuna does; it lists its plugins
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in modules:
            importlib.import_module(name)
    finally:
        if was_enabled:
            gc.enable()
