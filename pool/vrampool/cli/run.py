"""`vrampool run` and `vrampool submit`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from vrampool.cli.options import device_options, pool_options, say_what_is_ignored, take_settings
from vrampool.errors import InputError

_STUDY = [
    click.argument("objective"),
    click.option("--trials", "n_trials", type=int, help="Trials to add to the study."),
    click.option("--total", type=int, help="Trials the study shall have in all."),
    click.option("--study", "study_name", metavar="NAME", help="Study to go on with, or to make."),
    click.option(
        "--direction", metavar="D", multiple=True, help="minimize or maximize; several for several objectives."
    ),
    click.option(
        "--vram",
        default="auto",
        show_default=True,
        metavar="SIZE",
        help="auto; what each trial needs: 6GiB; bounds: 2GiB..20GiB; or module:function of its parameters.",
    ),
    click.option(
        "--sampler", metavar="pkg:Class", help="Sampler by import path, for example optuna.samplers:TPESampler."
    ),
    click.option("--pruner", metavar="pkg:Class", help="Pruner by import path."),
    click.option("--timeout", type=float, metavar="S", help="Create no more trials after so many seconds."),
    click.option(
        "--trial-timeout", "trial_timeout_s", type=float, metavar="S", help="End a trial after so many seconds."
    ),
    click.option("--max-concurrent", "max_concurrent_trials", type=int, help="Trials of this study at once."),
    click.option("--max-per-device", "max_trials_per_device", type=int, help="Of them, on each device."),
    click.option("--priority", type=int, default=0, help="Trials of studies with a higher one start first."),
    click.option("--env", multiple=True, metavar="K=V", help="A variable for the trials' processes."),
    click.option("--workdir", metavar="DIR", help="Working directory of the trials."),
    click.option("--point", "points", multiple=True, metavar="JSON", help="Parameters to try first: '{\"lr\": 0.01}'."),
    click.option("--skip-if-exists", is_flag=True, help="Leave out points that the study has."),
    click.option("--retry-timeouts", is_flag=True, help="Try trials again that ran into their timeout."),
    click.option("--max-infra-retries", type=int, default=2, show_default=True, help="Attempts after crashes."),
    click.option(
        "--oom",
        type=click.Choice(["auto", "user"]),
        default="auto",
        show_default=True,
        help="user: an out-of-memory error that the objective catches is its own affair.",
    ),
    click.option("--seed", type=int, help="Seed of the trials' random numbers."),
    click.option("--gpus", type=int, default=1, hidden=True),
    click.option("--probe", is_flag=True, help="First find what its largest trials need, as `vrampool probe` does."),
]


def _study_options(function: Any) -> Any:
    for option in reversed(_STUDY):
        function = option(function)
    return function


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """Turn the options of the command line into arguments of `Pool.submit`."""
    if given["n_trials"] is not None and given["total"] is not None:
        raise InputError("give --trials (how many to add) or --total (how many in all), not both")
    directions = list(given.pop("direction"))
    given["directions"] = directions or None
    variables = {}
    for text in given.pop("env"):
        name, sep, value = text.partition("=")
        if not sep or not name:
            raise InputError(f"--env {text!r} is not NAME=VALUE")
        variables[name] = value
    given["env"] = variables
    points = []
    for text in given.pop("points"):
        try:
            point = json.loads(text)
        except ValueError as error:
            raise InputError(f"--point {text!r} is not JSON: {error}") from None
        if not isinstance(point, dict):
            raise InputError(f"--point {text!r} is not a JSON object of parameters")
        points.append(point)
    given["points"] = points
    given["vram"] = _read_vram(given["vram"])
    return given


def _read_vram(text: str) -> Any:
    """Return what `Pool.submit` takes: bounds are a pair, an open end of them is left out."""
    if ".." in text and ":" not in text:
        least, _, most = text.partition("..")
        return least.strip() or None, most.strip() or None
    return int(text) if text.isascii() and text.isdigit() else text


def _make_pool(settings: Any) -> Any:
    from vrampool.pool import Pool

    return Pool(**{name: getattr(settings, name) for name in type(settings).__dataclass_fields__})


def _gone_file(url: str | None) -> str:
    """Say that the study's file is gone: on Linux a program goes on with a file that was deleted under it."""
    from sqlalchemy import make_url

    path = make_url(url).database if url and url.startswith("sqlite:") else None
    if not path or Path(path).exists():
        return ""
    return f"the study's file {path} was deleted while the study ran: what is printed here is kept nowhere else"


@click.command()
@_study_options
@pool_options
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def run(as_json: bool, **given: Any) -> int:
    """Run a study and wait: OBJECTIVE is FILE.py:function or package.module:function.

    Starts a pool for it and ends it afterwards, unless one runs already or --redis names one.
    """
    from optuna import logging as optuna_logging

    from vrampool.cli.interrupting import Interrupts, interrupted

    optuna_logging.set_verbosity(optuna_logging.WARNING)
    settings = take_settings(given)
    asked = _asked(given)
    if asked["n_trials"] is None and asked["total"] is None and asked["timeout"] is None:
        raise InputError("say how much to run: --trials N, --total N or --timeout SECONDS")
    started = time.monotonic()
    interrupts, ended_by_user = Interrupts(), False
    with interrupts.listening():
        from vrampool.cli.output import follow, print_summary, summary, to_json
        from vrampool.cli.stopped import StoppedNews

        pool = _make_pool(settings)
        # Checked before a pool is started: a slip in the command line shows at once.
        pool.check(asked["objective"], **{name: value for name, value in asked.items() if name != "objective"})
        with pool:
            own = pool.local is not None and pool.local.process is not None
            say_what_is_ignored(pool.local)
            interrupts.check()
            look = StoppedNews(pool.settings.state_dir).beside(interrupts.check)
            handle = pool.submit(**asked)
            try:
                interrupts.check()
                follow(handle, quiet=as_json, look=look)
            except KeyboardInterrupt:
                ended_by_user = True
                interrupted(pool, handle, interrupts, quiet=as_json)
            found = summary(handle, wall_s=time.monotonic() - started)
            lost = _gone_file(pool.settings.storage)
            state_dir = pool.settings.state_dir if own else None
    if as_json:
        print(to_json(found))
    else:
        print_summary(found, state_dir)
    if ended_by_user:
        print(f"interrupted; the same command with --study {found['study']} goes on", file=sys.stderr)
        return 130
    if lost:
        print(f"error: {lost}", file=sys.stderr)
        return 1
    failed = found["state"] == "failed" or not found["counts"].get("COMPLETE")
    if failed and not as_json:
        print(
            "error: no trial completed" if found["state"] != "failed" else f"error: {found['reason']}", file=sys.stderr
        )
    return 1 if failed else 0


@click.command()
@_study_options
@pool_options
@device_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def submit(as_json: bool, **given: Any) -> int:
    """Submit a study to a pool that runs (or start a detached one) and return."""
    from optuna import logging as optuna_logging

    optuna_logging.set_verbosity(optuna_logging.WARNING)
    settings = take_settings(given)
    asked = _asked(given)
    pool = _make_pool(settings)
    pool.check(asked["objective"], **{name: value for name, value in asked.items() if name != "objective"})
    say_what_is_ignored(pool.local)
    handle = pool.submit(**asked)
    if as_json:
        print(json.dumps({"study": handle.study_name, "submission": handle.id}))
    else:
        print(f"submitted {handle.study_name}; look at it with: vrampool status {handle.study_name}")
    return 0
