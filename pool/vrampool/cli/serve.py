"""`vrampool coordinator`: a coordinator in the foreground. Two may run; one leads."""

from __future__ import annotations

import logging
import signal
from typing import Any

import click

from vrampool.cli.options import pool_options, take_settings
from vrampool.errors import InputError
from vrampool.processes import keep_secrets


@click.command()
@pool_options
@click.option("--exit-when-idle", is_flag=True, help="End when there was nothing to do for VRAMPOOL_IDLE_EXIT_S.")
def coordinator(exit_when_idle: bool, **given: Any) -> int:
    """Ask the studies of a pool for trials and enqueue them."""
    from vrampool.coordinator import Coordinator
    from vrampool.local.state import StateDir
    from vrampool.queueing import connect
    from vrampool.signing import load_secret
    from vrampool.storage import open_storage

    keep_secrets()
    settings = take_settings(given)
    if settings.redis is None or settings.storage is None:
        record = StateDir(settings).read()
        if record is not None:
            raise InputError(
                f"the local pool in {settings.state_dir} has a coordinator; name another pool with --redis and --storage"
            )
        raise InputError("a coordinator needs --redis URL and --storage URL (or VRAMPOOL_REDIS and VRAMPOOL_STORAGE)")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    signer = load_secret(settings, create=False)
    connection = connect(settings.redis, role="coordinator")
    storage = open_storage(settings.storage, create_schema=True)
    idle = settings.idle_exit_s if exit_when_idle and settings.idle_exit_s else None
    loop = Coordinator(settings, connection, storage, signer, idle_exit_s=idle)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda _signum, _frame: loop.stop())
    loop.run()
    return 0
