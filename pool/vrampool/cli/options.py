"""Options that several commands share, and the settings made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from vrampool.settings import Settings, load_settings

F = TypeVar("F", bound=Callable[..., Any])

_POOL = [
    click.option("--redis", metavar="URL", help="Redis of the pool. Without it: the local pool."),
    click.option("--storage", metavar="URL", help="Study storage, for example postgresql+psycopg://user@hub/optuna."),
    click.option("--pool", metavar="NAME", help="Name of the pool (default: vrampool)."),
    click.option("--state-dir", type=click.Path(path_type=Path), help="Where the local pool keeps its files."),
    click.option("--config", type=click.Path(path_type=Path), help="Settings file (default: vrampool.toml)."),
    click.option("--debug", is_flag=True, default=None, help="Show tracebacks."),
]
_GPU = click.option("--gpu", metavar="WHICH", help="all, cpu, or indices or UUIDs with commas (default: all).")
#: Of workers, and of the coordinator: it counts how long a submission found no room for any trial.
AGE_LIMIT = click.option(
    "--age-limit",
    "age_limit_s",
    type=float,
    metavar="S",
    help="A trial passed over for so long has a device kept free for it (default: 120).",
)
_DEVICE = [
    click.option("--budget", metavar="SIZE", help="Memory a device may have in use: 85%, 20GiB, bytes (default: 85%)."),
    click.option("--max-trials", type=int, help="Trials at once on a device."),
    click.option("--spares", type=int, help="Processes started ahead of need (default: 1)."),
    click.option(
        "--start-method",
        type=click.Choice(["spawn", "forkserver"]),
        help="How trials start; forkserver for short ones.",
    ),
    click.option(
        "--concurrency", type=click.Choice(["auto", "memory"]), help="auto: no more trials than a card gains from."
    ),
    click.option(
        "--mps", type=click.Choice(["off", "on", "auto"]), help="Share cards through NVIDIA's MPS (default: off)."
    ),
    click.option(
        "--share", is_flag=True, default=None, help="Share devices with another pool; both need --share and a --budget."
    ),
    click.option(
        "--preload",
        metavar="MODULES",
        help="What a spare process imports; with a ?: once a trial has (default: torch,torch._dynamo?).",
    ),
    AGE_LIMIT,
]
#: Settings that these options are for.
_FOR_NEW_POOLS = (
    "gpu", "budget", "max_trials", "spares", "start_method", "concurrency", "mps", "share", "preload", "age_limit_s",
)  # fmt: skip
_SETTING_NAMES = frozenset(Settings.__dataclass_fields__)


def pool_options(function: F) -> F:
    """Add the options that say which pool is meant."""
    for option in reversed(_POOL):
        function = option(function)
    return function


def device_options(function: F) -> F:
    """Add the options that say which devices a pool that is started here uses, and how."""
    return _GPU(use_options(function))


def use_options(function: F) -> F:
    """Add the options that say how devices are used."""
    for option in reversed(_DEVICE):
        function = option(function)
    return function


def given_for_a_new_pool() -> list[str]:
    """Return the options of the command in hand that were typed and say how a pool that is started uses devices."""
    context = click.get_current_context()
    flags = {option.name: option.opts[0] for option in context.command.params}
    typed = click.core.ParameterSource.COMMANDLINE
    return [flags[name] for name in _FOR_NEW_POOLS if context.get_parameter_source(name) is typed]


def split_trial(study: str, number: int | None) -> tuple[str, int | None]:
    """Return study and number of a trial that may have been named STUDY/NUMBER, as messages name it."""
    name, slash, tail = study.rpartition("/")
    if number is None and slash and name and tail.isdigit():
        return name, int(tail)
    return study, number


def take_settings(given: dict[str, Any]) -> Settings:
    """Take the options that are settings out of `given` and read the settings with them."""
    file = given.pop("config", None)
    flags = {name: given.pop(name) for name in list(given) if name in _SETTING_NAMES}
    return load_settings(flags, file=file)
