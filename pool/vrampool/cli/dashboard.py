"""`vrampool dashboard`: the page of a running pool, and its figures for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from vrampool.cli.options import pool_options, take_settings
from vrampool.errors import InputError, SettingsError, StudyError
from vrampool.settings import Settings


@click.command()
@pool_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve on; 0.0.0.0 for every one.")
@click.option("--port", type=int, help="Port; 0 for any that is free.  [default: 8765]")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME", help="A name it is also reached under.")
@click.option("--token-file", type=click.Path(path_type=Path), help="Where the token is kept (made if missing).")
@click.option("--view-only", is_flag=True, help="Let nobody stop, pause or drain anything.")
@click.option("--optuna-dashboard", "neighbour", is_flag=True, help="Serve optuna-dashboard too, under /dashboard.")
def dashboard(
    host: str,
    port: int | None,
    allowed_hosts: tuple[str, ...],
    token_file: Path | None,
    view_only: bool,
    neighbour: bool,
    **given: Any,
) -> int:
    """Serve a page that shows the pool live: memory of each device, studies, what waits and why. Ctrl-C ends it.

    On this machine everybody may look; to stop or pause anything the token is needed. Bound to another address, it is
    needed to look, too. `/metrics` is there for Prometheus.
    """
    try:
        from vrampool.dashboard.app import Dashboard
        from vrampool.dashboard.serving import PORT, address_of, bind, serve
    except ImportError as error:
        needed = (error.name or "").partition(".")[0]
        if needed not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        raise InputError(f"the dashboard needs {needed}: pip install 'vrampool[dashboard]'") from None
    from vrampool.dashboard.actions import PoolActions
    from vrampool.dashboard.neighbour import optuna_dashboard
    from vrampool.dashboard.security import TOKEN_FILE, Access, load_token
    from vrampool.dashboard.source import PoolSource

    settings = _running(take_settings(given))
    listener = bind(host, PORT if port is None else port)
    path = token_file or settings.state_dir / TOKEN_FILE
    token = load_token(path)
    access = Access(token, host=host, port=listener.getsockname()[1], allowed_hosts=allowed_hosts)
    source = PoolSource(settings)
    try:
        actions = None if view_only else PoolActions(source)
        more = optuna_dashboard(source.storage) if neighbour else ()
        page = Dashboard(source, access, actions, more)
        print(f"the dashboard of the pool {settings.pool}: {address_of(listener)}", flush=True)
        if access.wide:
            print(f"to look at it, sign in with the token in {path}; over networks you do not trust, use TLS or ssh -L")
        elif not view_only:
            print(f"to stop or pause anything there, sign in with the token in {path}")
        if sys.stdout.isatty():  # in a file it would be a secret in a log
            print(f"or open {address_of(listener)}#token={token}", flush=True)
        serve(page, listener)
    finally:
        source.close()
        listener.close()
    return 0


def _running(settings: Settings) -> Settings:
    """Return the settings of a pool that runs; never start one just to look at it."""
    from vrampool.local.starting import attach

    if settings.redis is not None:
        if settings.storage is None:
            raise SettingsError("--redis is given but --storage is not: the studies are read from it")
        return settings
    local = attach(settings)
    if local is None:
        raise StudyError(
            f"no pool runs in {settings.state_dir}: start one with `vrampool up`, or name one with --redis"
        )
    return local.settings
