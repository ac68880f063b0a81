"""`vrampool top`: the pool live in a terminal; one snapshot where there is none."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from vrampool.cli.manage import running_pool
from vrampool.cli.options import pool_options, take_settings

if TYPE_CHECKING:
    from rich.console import Console

    from vrampool.cli.board import Snapshot, StudyLine
    from vrampool.handle import Handle
    from vrampool.pool import Pool

#: New submissions are looked for this often; each costs reads of the storage.
_SUBMISSIONS_S = 5.0
#: Finished submissions that are still shown.
_FINISHED = 3
_PLAIN_WIDTH = 120


@click.command()
@click.argument("study_name", required=False)
@pool_options
@click.option("--interval", "interval_s", type=click.FloatRange(min=0.2), default=1.0, show_default=True, metavar="S",
              help="Pause between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one snapshot and end.")
def top(study_name: str | None, interval_s: float, once: bool, **given: Any) -> int:
    """Show devices, running and waiting trials and studies, live; with STUDY_NAME that study only. q ends it.

    Where standard output is no terminal, one snapshot is printed. Colours follow NO_COLOR.
    """
    import optuna
    from rich.console import Console

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    watcher = Watcher(running_pool(take_settings(given)), study_name)
    console = Console(highlight=False)
    if once or not console.is_terminal or console.is_dumb_terminal:
        from vrampool.cli.board import draw

        if not console.is_terminal and "COLUMNS" not in os.environ:
            console = Console(highlight=False, width=_PLAIN_WIDTH)  # a file has no width; sentences are to be whole
        console.print(draw(watcher.look(), console.width, None, ascii_only=_ascii(console)))
        return 0
    try:
        _live(console, watcher, interval_s)
    except KeyboardInterrupt:  # the way to end it, as good as q
        pass
    return 0


def _live(console: Console, watcher: Watcher, interval_s: float) -> None:
    from rich.live import Live

    from vrampool.cli.board import draw

    with _keys() as wait_for_key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            started_s = time.monotonic()
            width, height = console.size
            live.update(draw(watcher.look(), width, height, ascii_only=_ascii(console)), refresh=True)
            while (left_s := started_s + interval_s - time.monotonic()) > 0:
                if wait_for_key(left_s) in ("q", "Q", "\x03", "\x04"):
                    return


def _ascii(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")


@contextmanager
def _keys() -> Iterator[Any]:
    """Read single keys where standard input is a terminal; put it back as it was."""
    if not sys.stdin.isatty():
        yield lambda wait_s: time.sleep(wait_s)
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def wait_for_key(wait_s: float) -> str:
        ready, _, _ = select.select([fd], [], [], wait_s)
        if not ready:
            return ""
        # Past Python's buffer: what it had read ahead, select would not see.
        return os.read(fd, 1).decode(errors="replace") or "\x04"

    try:
        tty.setcbreak(fd)
        yield wait_for_key
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class Watcher:
    """Looks at a pool again and again.

    Args:
        pool: The pool.
        study_name: Show this study's submissions only; None: all that run, and the last that ended.
    """

    def __init__(self, pool: Pool, study_name: str | None) -> None:
        from vrampool.queueing import History

        self._pool = pool
        self._study_name = study_name
        self._handles: list[Handle] = [pool.attach(study_name)] if study_name else []
        self._ended: dict[str, StudyLine] = {}
        self._history = History(pool.connection, pool.settings.pool)
        self._looked_s = -_SUBMISSIONS_S
        self._last: Snapshot | None = None

    def look(self) -> Snapshot:
        """Return the pool as it is now; the last that was seen, with why, while Redis or the database is away."""
        from vrampool.errors import VrampoolError
        from vrampool.queueing import TransientRedisError

        try:
            self._last = self._read()
        except (VrampoolError, TransientRedisError, OSError) as error:
            if self._last is None:
                raise
            self._last = replace(self._last, now=time.time(), problem=f"not up to date: {error}")
        return self._last

    def _read(self) -> Snapshot:
        from vrampool.cli.board import Snapshot
        from vrampool.waiting import why_each_waits

        devices, waiting = self._pool.devices(), self._pool.queue()
        reasons = why_each_waits(waiting, devices)
        if self._study_name is not None:
            waiting = [job for job in waiting if job.study == self._study_name]
        samples = {}
        for device in devices:
            if device.running and (found := self._history.samples(device.device_id, limit=1)):
                samples[device.device_id] = found[-1]
        return Snapshot(
            pool=self._pool.settings.pool,
            devices=devices,
            waiting=waiting,
            reasons=reasons,
            studies=self._studies(),
            samples=samples,
            now=time.time(),
        )

    def _studies(self) -> list[StudyLine]:
        now_s = time.monotonic()
        if self._study_name is None and now_s - self._looked_s >= _SUBMISSIONS_S:
            self._looked_s = now_s
            known = {handle.id: handle for handle in self._handles}
            self._handles = [known.get(handle.id, handle) for handle in self._pool.handles()]
        ended = [handle for handle in self._handles if handle.id in self._ended]
        shown = [h for h in self._handles if h.id not in self._ended or h in ended[-_FINISHED:]]
        lines = [self._study(handle) for handle in shown]
        open_lines = [line for line in lines if not line.progress.final]
        return open_lines + [line for line in lines if line.progress.final][-_FINISHED:]

    def _study(self, handle: Handle) -> StudyLine:
        from vrampool.cli.board import StudyLine, count_ooms

        if handle.id in self._ended:
            return self._ended[handle.id]
        progress = handle.progress()
        line = StudyLine(handle.study_name, progress, _best(handle), count_ooms(handle.trials))
        if progress.final:
            self._ended[handle.id] = line
        return line


def _best(handle: Handle) -> str:
    try:
        if len(handle.study.directions) > 1:
            return f"{len(handle.best_trials)} on the front"
        best = handle.best_trial
    except (ValueError, RuntimeError):  # nothing complete yet
        return ""
    return f"best {best.value:.5g} (trial {best.number})"
