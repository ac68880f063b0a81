"""`vrampool worker` and `vrampool reclaim`: they join the command through the entry-point group."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import click

from vrampool.errors import InputError
from vrampool.processes import keep_secrets
from vrampool.settings import Settings, load_settings


@click.command()
@click.option("--gpu", metavar="WHICH", help="all, cpu, or indices or UUIDs with commas (default: all).")
@click.option("--redis", metavar="URL", help="Redis of the pool.")
@click.option("--storage", metavar="URL", help="Study storage.")
@click.option("--pool", metavar="NAME", help="Name of the pool (default: vrampool).")
@click.option("--budget", metavar="SIZE", help="Memory a device may have in use: 85%, 20GiB, bytes (default: 85%).")
@click.option("--vram-total", metavar="SIZE", help="The device's size, where the driver does not tell it.")
@click.option("--max-trials", type=int, help="Trials at once on a device.")
@click.option("--spares", type=int, help="Processes started ahead of need (default: 1).")
@click.option("--spare-memory", metavar="SIZE", help="Host memory for more processes ahead of need (default: 10%).")
@click.option(
    "--start-method", type=click.Choice(["spawn", "forkserver"]), help="How trials start; forkserver for short ones."
)
@click.option(
    "--concurrency", type=click.Choice(["auto", "memory"]), help="auto: no more trials than a card gains from."
)
@click.option(
    "--mps", type=click.Choice(["off", "on", "auto"]), help="Share the card through NVIDIA's MPS (default: off)."
)
@click.option(
    "--preload",
    metavar="MODULES",
    help="What a spare process imports; with a ?: once a trial has (default: torch,torch._dynamo?).",
)
@click.option(
    "--grace", "grace_s", type=float, metavar="S", help="After SIGTERM trials may finish for so long (default: 30)."
)
@click.option(
    "--age-limit",
    "age_limit_s",
    type=float,
    metavar="S",
    help="A trial passed over for so long has a device kept free for it (default: 120).",
)
@click.option(
    "--share", is_flag=True, default=None, help="Share the device with another worker; needs an own --budget."
)
@click.option("--objectives", type=click.Choice(["any", "import"]), help="import: refuse objectives from notebooks.")
@click.option("--env-pass", metavar="NAMES", help="Variables that reach the trials although they look secret.")
@click.option("--state-dir", type=click.Path(path_type=Path), help="Where logs of trials and the secret are kept.")
@click.option("--checkpoint-dir", type=click.Path(path_type=Path), help="Where trials keep checkpoints, best shared.")
@click.option("--secret-file", type=click.Path(path_type=Path), help="The pool's secret.")
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (default: vrampool.toml).")
@click.option("--debug", is_flag=True, default=None, help="Show tracebacks.")
def worker(config: Path | None, **given: Any) -> int:
    """Run workers: one for each device, until they are stopped."""
    from vrampool_worker.supervisor import supervise

    settings: Settings = load_settings({name: value for name, value in given.items() if value is not None}, file=config)
    if settings.redis is None or settings.storage is None:
        raise InputError(
            "a worker needs --redis URL and --storage URL (or VRAMPOOL_REDIS and VRAMPOOL_STORAGE); "
            "for one machine `vrampool up` starts everything"
        )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    keep_secrets()
    return supervise(settings)


@click.command()
@click.option("--yes", is_flag=True, help="End the processes and remove the directories that are listed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--state-dir", type=click.Path(path_type=Path), help="Where the local pool keeps its files.")
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (default: vrampool.toml).")
@click.option("--debug", is_flag=True, default=None, help="Show tracebacks.")
def reclaim(config: Path | None, yes: bool, as_json: bool, **given: Any) -> int:
    """List what trials left behind on this host although their worker is gone; with --yes, end it.

    Only processes of this user that a worker of a pool has started are ever listed or ended.
    """
    from vrampool_worker.reclaim import end, find

    settings = load_settings({name: value for name, value in given.items() if value is not None}, file=config)
    found = find(settings)
    still = end(found) if yes else None
    if as_json:
        print(json.dumps(found.to_json() | ({"still": still.to_json()} if still is not None else {})))
    else:
        for orphan in found.processes:
            print(orphan)
        for folder in found.folders:
            print(f"{folder}: files of a worker that is gone")
        if not found:
            print("nothing is left behind")
        elif still is None:
            print("`vrampool reclaim --yes` ends these processes and removes these directories")
        elif not still:
            print("all of it is gone; `vrampool resume` lifts a quarantine")
    for orphan in still.processes if still is not None else ():
        print(f"error: still there although it was killed: {orphan}", file=sys.stderr)
    return 1 if still else 0
