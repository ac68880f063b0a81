"""`vrampool drain`, `pause` and `resume`: signed commands to workers that run."""

from __future__ import annotations

import getpass
import socket
import time
import uuid
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vrampool.cli.options import pool_options, take_settings
from vrampool.errors import InputError, VrampoolError
from vrampool.settings import Settings

if TYPE_CHECKING:
    from vrampool.queueing import Events, Registry, WorkerRecord

#: A command is a message that may get lost with a connection, so it is sent again until it was obeyed.
AGAIN_S = 1.0
ANSWER_S = 15.0
LOOK_S = 0.5
F = TypeVar("F", bound=Callable[..., Any])


def _operating(function: F) -> F:
    function = click.option("--all", "everybody", is_flag=True, help="Every worker of the pool.")(function)
    function = pool_options(function)
    return click.argument("workers", metavar="[WORKER]...", nargs=-1)(function)


@click.command()
@_operating
def pause(workers: tuple[str, ...], everybody: bool, **given: Any) -> int:
    """Let workers take no new trials until `resume`; running ones go on.

    WORKER is a worker's name, its host or its device, as `vrampool status --json` shows them; without one, the workers
    of this host are meant.
    """
    Operator(take_settings(given)).send("pause", workers, everybody)
    return 0


@click.command()
@_operating
def resume(workers: tuple[str, ...], everybody: bool, **given: Any) -> int:
    """Let workers take trials again after `pause`, `drain --stay` or a quarantine. WORKER as for `pause`."""
    Operator(take_settings(given)).send("resume", workers, everybody)
    return 0


@click.command()
@_operating
@click.option("--stay", is_flag=True, help="Keep the worker when it is empty, until it is stopped or resumed.")
@click.option("--wait", is_flag=True, help="Wait until no trial runs there.")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Wait no longer; exit code 1 if trials run then.")
def drain(
    workers: tuple[str, ...], everybody: bool, stay: bool, wait: bool, timeout_s: float | None, **given: Any
) -> int:
    """Let workers take no new trials, finish the running ones however long they take, and end.

    WORKER as for `pause`.
    """
    pool = Operator(take_settings(given))
    if not workers and not everybody and not pool.chosen((), False):
        print("no worker runs on this host")
        return 0
    names = pool.send("drain", workers, everybody, stay=stay)
    if wait:
        pool.wait_until_empty(names, timeout_s)
    return 0


class Operator:
    """Sends commands to the workers of a pool.

    Args:
        settings: Which pool; the local one where no Redis is named.
    """

    def __init__(self, settings: Settings) -> None:
        from vrampool.local.starting import attach
        from vrampool.queueing import Events, Registry, connect
        from vrampool.signing import load_secret

        if settings.redis is None:
            local = attach(settings)
            if local is None:
                raise InputError(f"no pool runs in {settings.state_dir}: name one with --redis")
            settings = local.settings
        assert settings.redis is not None
        connection = connect(settings.redis, role="operator")
        self._settings = settings
        self._registry: Registry = Registry(connection, settings.pool)
        self._events: Events = Events(connection, settings.pool, load_secret(settings, create=False))

    def chosen(self, wanted: Collection[str], everybody: bool) -> list[str]:
        """Return the names of the workers that are meant.

        Raises:
            InputError: a word names none.
        """
        records = self._registry.workers()
        if everybody:
            return [record.name for record in records]
        if not wanted:
            return self._of_this_host(records)
        names = []
        for word in wanted:
            found = [record.name for record in records if word in (record.name, record.host, record.device_id)]
            if not found:
                known = ", ".join(record.name for record in records) or "none"
                raise InputError(f"no worker, host or device of the pool is called {word!r}; workers: {known}")
            names += found
        return list(dict.fromkeys(names))

    def _of_this_host(self, records: list[WorkerRecord]) -> list[str]:
        """Return those that leave their signs in our state directory; where there are none, those with our host's name.

        Pods that use the host's network all have its name.
        """
        from vrampool.health import look

        here = {verdict.sign.name for verdict in look(self._settings.state_dir) if verdict.alive}
        host = socket.gethostname()
        return [r.name for r in records if (r.name in here if here else r.host == host)]

    def send(self, command: str, wanted: Collection[str], everybody: bool, **fields: Any) -> list[str]:
        """Send a command until every worker that is meant has obeyed. Return their names.

        Raises:
            InputError: no worker is meant.
            VrampoolError: one does not answer.
        """
        names = self.chosen(wanted, everybody)
        if not names:
            raise InputError("no worker runs on this host: name one, or give --all")
        missing = set(names)
        message = {"workers": names, "id": uuid.uuid4().hex, "reason": f"`vrampool {command}` by {_who()}", **fields}
        deadline_s = time.monotonic() + ANSWER_S
        with self._events.subscribe() as answers:
            while missing and time.monotonic() < deadline_s:
                self._events.command(command, **message)
                again_s = time.monotonic() + AGAIN_S
                while missing and (left_s := again_s - time.monotonic()) > 0:
                    for event in answers.wait(left_s):
                        if event.get("kind") == "obeyed" and event.get("id") == message["id"]:
                            missing.discard(str(event.get("worker")))
                if missing:  # one that has ended meanwhile obeys nothing
                    missing &= {record.name for record in self._registry.workers()}
        if missing:
            raise VrampoolError(f"no answer from {', '.join(sorted(missing))} within {ANSWER_S:.0f} s; see its log")
        for name in names:
            print(f"{name}: {command}")
        return names

    def wait_until_empty(self, names: Collection[str], timeout_s: float | None) -> None:
        """Wait until none of these workers runs a trial.

        Raises:
            VrampoolError: the time is up; the text names what runs.
        """
        from vrampool.queueing import TransientRedisError

        deadline_s = time.monotonic() + timeout_s if timeout_s is not None else None
        running = "trials"
        with self._events.subscribe() as events:
            while True:
                try:
                    busy = [record for record in self._registry.workers() if record.name in names and record.running]
                    if not busy:
                        return
                    running = ", ".join(f"{item.study}/{item.number}" for record in busy for item in record.running)
                except TransientRedisError:
                    pass  # it comes back, or the time is up
                if deadline_s is not None and time.monotonic() >= deadline_s:
                    raise VrampoolError(f"after {timeout_s:g} s there still run: {running}")
                events.wait(LOOK_S)


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's uid without a passwd entry
        return socket.gethostname()
