"""One worker process for one device: `python -m vrampool_worker`, started by the supervisor."""

from __future__ import annotations

import logging
import os
import sys

from vrampool.errors import InputError, VrampoolError
from vrampool.processes import EMBEDDED, end_with_keeper, keep_secrets, patiently
from vrampool.settings import Settings, load_settings


def serve(settings: Settings) -> int:
    """Run a worker on the one device that the settings name. Returns the exit code."""
    from vrampool.queueing import connect
    from vrampool_worker.rq_worker import GpuWorker

    if settings.redis is None or settings.storage is None:
        raise InputError("a worker needs --redis URL and --storage URL (or VRAMPOOL_REDIS and VRAMPOOL_STORAGE)")
    url = settings.redis
    connection = patiently(lambda: connect(url, role="worker"), always=EMBEDDED in os.environ)
    worker = GpuWorker([settings.pool], connection=connection, settings=settings)
    worker.work()
    return worker.exit_code


def import_ahead() -> None:
    """Import what `serve` needs."""
    from vrampool_worker import rq_worker  # noqa: F401


def main() -> int:
    """Serve with the settings of the environment; ends in order when its supervisor dies."""
    keep_secrets()
    end_with_keeper()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    settings = Settings()
    try:
        settings = load_settings()
        return serve(settings)
    except VrampoolError as error:
        if settings.debug:
            raise
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
