"""`vrampool up`, `down` and `stop`."""

from __future__ import annotations

import json
import signal
from typing import Any

import click

from vrampool.cli.options import device_options, pool_options, say_what_is_ignored, take_settings
from vrampool.errors import InputError, StudyError, VrampoolError


@click.command()
@pool_options
@device_options
@click.option("--foreground", is_flag=True, help="Stay, and end the pool with this command.")
def up(foreground: bool, **given: Any) -> int:
    """Start the local pool: Valkey, a coordinator, a worker per device. It goes on where it was."""
    from vrampool.local.starting import attach, attach_or_start

    settings = take_settings(given)
    if settings.redis is not None:
        raise InputError("`up` starts a local pool; for --redis start `vrampool coordinator` and `vrampool worker`")
    local = attach(settings) or attach_or_start(settings, owned=foreground)
    say_what_is_ignored(local)
    if not local.started:
        print(f"a pool runs already in {settings.state_dir} (pid {local.record.pid})")
        return 0
    print(f"the pool runs (pid {local.record.pid}); state in {settings.state_dir}; `vrampool down` ends it", flush=True)
    if foreground:
        try:
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
        finally:
            local.stop()
    return 0


@click.command()
@pool_options
def down(**given: Any) -> int:
    """End the local pool. What runs may finish for the grace period, the rest is handed back; nothing is lost."""
    from vrampool.local.starting import attach

    settings = take_settings(given)
    local = attach(settings)
    if local is None:
        print(f"no pool runs in {settings.state_dir}")
        return 0
    if not local.stop():
        raise VrampoolError(f"the pool (pid {local.record.pid}) did not end in time; see {settings.state_dir}/logs")
    print("the pool has ended")
    return 0


@click.command()
@click.argument("study_name")
@pool_options
@click.option("--now", is_flag=True, help="End running trials too; without it they finish.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stop(study_name: str, now: bool, as_json: bool, **given: Any) -> int:
    """Stop a study: no more trials; running ones finish, or end at once with --now."""
    pool = running_pool(take_settings(given))
    handle = pool.attach(study_name)
    if now:
        handle.cancel("cancelled with `vrampool stop --now`")
    else:
        handle.stop("stopped with `vrampool stop`")
    state = str(handle.state)
    print(json.dumps({"study": study_name, "state": state}) if as_json else f"{study_name}: {state}")
    return 0


def running_pool(settings: Any) -> Any:
    """Return a `Pool` for a pool that runs; never start one just to look at it."""
    from vrampool.local.starting import attach
    from vrampool.pool import Pool

    if settings.redis is None and attach(settings) is None:
        raise StudyError(
            f"no pool runs in {settings.state_dir}: start one with `vrampool up`, or name one with --redis"
        )
    return Pool(**{name: getattr(settings, name) for name in type(settings).__dataclass_fields__})
