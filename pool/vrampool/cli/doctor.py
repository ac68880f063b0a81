"""`vrampool doctor`: does everything that a pool needs work here?"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from vrampool.cli.options import pool_options, take_settings, use_options
from vrampool.errors import VrampoolError
from vrampool.settings import Settings, hide_password

#: Checks of the data plane join here: a callable of the settings that yields (name, verdict, text).
CHECK_GROUP = "vrampool.checks"
#: What is tried out on the devices joins here, in the same way; it takes some of their memory for a while.
PROOF_GROUP = "vrampool.proofs"


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    verdict: str  #: "ok", "warn" or "fail"
    text: str


@click.command()
@pool_options
@click.option(
    "--gpu",
    metavar="[WHICH]",
    is_flag=False,
    flag_value="all",
    help="Also try the devices out: all, cpu, or indices or UUIDs. A trial that takes too much must fail at its cap.",
)
@use_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool, **given: Any) -> int:
    """Look at the system, the devices, Redis and the storage; say what is wrong and what to do.

    With --gpu memory is over-allocated in a child of its own, which must fail at its cap while a neighbour goes on.
    """
    groups = [CHECK_GROUP] if given["gpu"] is None else [CHECK_GROUP, PROOF_GROUP]
    settings = take_settings(given)
    checks = list(_checks(settings, groups))
    failed = [check for check in checks if check.verdict == "fail"]
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
    else:
        marks = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}
        for check in checks:
            print(f"{marks[check.verdict]}  {check.name}: {check.text}")
    return 1 if failed else 0


def _checks(settings: Settings, groups: list[str]) -> Iterator[Check]:
    yield _system()
    for name, look in (("state directory", _state), ("redis", _redis), ("storage", _storage)):
        try:
            yield Check(name, "ok", look(settings))
        except VrampoolError as error:
            yield Check(name, "fail", str(error))
    for point in [point for group in groups for point in importlib.metadata.entry_points(group=group)]:
        try:
            for name, verdict, text in point.load()(settings):
                yield Check(name, verdict, text)
        except VrampoolError as error:
            yield Check(point.name, "fail", str(error))


def _system() -> Check:
    text = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    if platform.system() != "Linux":
        return Check("system", "fail", f"{text}: only Linux is supported")
    return Check("system", "ok", text)


def _state(settings: Settings) -> str:
    from vrampool.local.state import StateDir

    StateDir(settings).make()
    return str(settings.state_dir)


def _redis(settings: Settings) -> str:
    from vrampool.local.embedded import EmbeddedValkey
    from vrampool.queueing import connect

    if settings.redis is not None:
        connect(settings.redis, role="client").close()
        return f"{hide_password(settings.redis)} answers"
    with tempfile.TemporaryDirectory(prefix="vp-") as folder:
        server = EmbeddedValkey(Path(folder))
        server.start()
        try:
            connect(server.url, role="client").close()
        finally:
            server.stop()
    return "the embedded Valkey starts and answers"


def _storage(settings: Settings) -> str:
    from vrampool.storage import open_storage

    if settings.storage is not None:
        open_storage(settings.storage, create_schema=False)
        return f"{hide_password(settings.storage)} answers"
    with tempfile.TemporaryDirectory(prefix="vp-") as folder:
        open_storage(f"sqlite:///{folder}/check.db", create_schema=True)
    return "SQLite works in the temporary directory"
