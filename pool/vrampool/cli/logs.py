"""`vrampool logs`: what a trial printed, from whichever host it runs or ran on."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from vrampool.cli.manage import running_pool
from vrampool.cli.options import pool_options, split_trial, take_settings
from vrampool.errors import InputError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from vrampool.handle import Handle

_LOOK_S = 0.3


@click.command()
@click.argument("study_name", metavar="STUDY[/TRIAL]")
@click.argument("number", metavar="[TRIAL]", type=int, required=False)
@pool_options
@click.option("-f", "--follow", is_flag=True, help="Go on until the trial has ended; a waiting one is waited for.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines only.")
def logs(study_name: str, number: int | None, follow: bool, lines: int | None, **given: Any) -> int:
    """Print the output (stdout and stderr) of a trial: `vrampool logs digits 12`, or digits/12.

    Without TRIAL the newest one that runs is meant, else the newest that has run. Of long output head and tail are kept
    (VRAMPOOL_LOG_BYTES), on the host that ran it, also when the trial was killed.
    """
    from vrampool.trial_output import TrialOutput

    study_name, number = split_trial(study_name, number)
    pool = running_pool(take_settings(given))
    handle = pool.attach(study_name)
    trial = _choose(handle, number)
    if number is None:
        print(f"trial {trial.number}, {trial.state.name.lower()}:", file=sys.stderr, flush=True)
    if follow:
        trial = _await_start(handle, trial)
    output = TrialOutput(pool.settings, pool.connection)
    for data in output.read(study_name, trial, follow=follow):
        _write(data if lines is None else _last_lines(data, lines))
        lines = None
    if follow and (after := _retry_of(handle, trial.number)) is not None:
        print(f"trial {trial.number} is tried again as trial {after}", file=sys.stderr)
    return 0


def _choose(handle: Handle, number: int | None) -> FrozenTrial:
    from optuna.trial import TrialState

    trials = handle.study.get_trials(deepcopy=False)
    if number is None:
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        started = [trial for trial in trials if trial.datetime_start is not None]
        found = (running or started or trials)[-1:]
        if not found:
            raise InputError(f"study {handle.study_name} has no trial yet")
    else:
        found = [trial for trial in trials if trial.number == number]
        if not found:
            raise InputError(f"study {handle.study_name} has no trial {number}")
    return found[0]


def _await_start(handle: Handle, trial: FrozenTrial) -> FrozenTrial:
    from optuna.trial import TrialState

    told = False
    while trial.state == TrialState.WAITING:
        if not told:
            told = True
            print(f"trial {trial.number} waits; `vrampool why` says for what", file=sys.stderr, flush=True)
        time.sleep(_LOOK_S)
        trial = _choose(handle, trial.number)
    return trial


def _retry_of(handle: Handle, number: int) -> int | None:
    """Return the trial that takes over, if one does by now."""
    from vrampool.storage import mark_of

    for trial in handle.study.get_trials(deepcopy=False):
        if (mark := mark_of(trial)) is not None and mark.retry_of == number:
            return trial.number
    return None


def _last_lines(data: bytes, count: int) -> bytes:
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""


def _write(data: bytes) -> None:
    """Pass bytes on as they are: a trial may print anything."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
