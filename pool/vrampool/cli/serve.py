"""`vrampool coordinator`: a coordinator in the foreground. Two may run; one leads."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import click

from vrampool.cli.options import AGE_LIMIT, pool_options, take_settings
from vrampool.errors import InputError
from vrampool.health import SignOfLife
from vrampool.processes import EMBEDDED, ServiceManager, end_with_keeper, keep_secrets, patiently

#: A turn may sample and read the whole study; one that is silent for longer hangs.
STUCK_S = 60.0


@click.command()
@pool_options
@AGE_LIMIT
@click.option("--exit-when-idle", is_flag=True, help="End when there was nothing to do for VRAMPOOL_IDLE_EXIT_S.")
def coordinator(exit_when_idle: bool, **given: Any) -> int:
    """Ask the studies of a pool for trials and enqueue them."""
    from vrampool.coordinator import Coordinator
    from vrampool.local.state import StateDir
    from vrampool.queueing import connect
    from vrampool.signing import load_secret
    from vrampool.storage import open_storage

    keep_secrets()
    end_with_keeper()
    settings = take_settings(given)
    if settings.redis is None or settings.storage is None:
        record = StateDir(settings).read()
        if record is not None:
            raise InputError(
                f"the local pool in {settings.state_dir} has a coordinator; "
                "name another pool with --redis and --storage"
            )
        raise InputError("a coordinator needs --redis URL and --storage URL (or VRAMPOOL_REDIS and VRAMPOOL_STORAGE)")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    signer = load_secret(settings, create=False)
    redis, database = settings.redis, settings.storage
    connection = patiently(lambda: connect(redis, role="coordinator"), always=EMBEDDED in os.environ)
    storage = patiently(lambda: open_storage(database, create_schema=True))
    idle = settings.idle_exit_s if exit_when_idle and settings.idle_exit_s else None
    name = f"{socket.gethostname()}-{os.getpid()}"
    sign = SignOfLife(settings.state_dir, "coordinator", "0", name=name, limit_s=STUCK_S)
    systemd = ServiceManager()
    show = _teller(sign, systemd)
    loop = Coordinator(settings, connection, storage, signer, idle_exit_s=idle, show=show)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda _signum, _frame: loop.stop())
    try:
        loop.run()
    finally:
        systemd.stopping()
        sign.remove()
    return 0


def _teller(sign: SignOfLife, systemd: ServiceManager) -> Callable[[str, str], None]:
    def show(state: str, reason: str) -> None:
        sign.show(state, ready=not reason, reason=reason)
        systemd.alive(f"{state}: {reason}" if reason else state)

    return show
