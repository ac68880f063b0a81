"""`vrampool health`: what a probe asks, of the processes on this host alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from vrampool.cli.options import take_settings
from vrampool.health import look


@click.command()
@click.option("--ready", is_flag=True, help="Ask whether they do their work, not only whether they live.")
@click.option("--role", type=click.Choice(["coordinator", "worker"]), help="Ask these only.")
@click.option("--pool", metavar="NAME", help="Name of the pool (default: vrampool).")
@click.option("--state-dir", type=click.Path(path_type=Path), help="Where the pool keeps its files.")
@click.option("--config", type=click.Path(path_type=Path), help="Settings file (default: vrampool.toml).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def health(ready: bool, role: str | None, as_json: bool, **given: Any) -> int:
    """Ask the workers and the coordinator of this host whether they live. Exit code 0: all of them do.

    They are asked through the state directory, so neither Redis nor the database has a say in it.
    """
    settings = take_settings(given)
    found = [verdict for verdict in look(settings.state_dir) if role in (None, verdict.sign.role)]
    good = bool(found) and all(verdict.ready if ready else verdict.alive for verdict in found)
    if as_json:
        print(json.dumps({"ok": good, "processes": [asdict(verdict) for verdict in found]}))
        return 0 if good else 1
    for verdict in found:
        print(verdict.text)
    if not found:
        print(f"no {role or 'worker or coordinator'} has left a sign in {settings.state_dir}")
    return 0 if good else 1
