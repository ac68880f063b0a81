"""Options that several commands share, and the settings made of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vrampool.settings import Settings, load_settings

if TYPE_CHECKING:
    from vrampool.local.starting import LocalPool

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


def say_what_is_ignored(local: LocalPool | None) -> None:
    """Name the options of the command line that are for a pool that is started, where one runs already.

    Args:
        local: The pool that the command uses; None: one that `--redis` names.
    """
    if local is not None and local.started:
        return
    context = click.get_current_context()
    flags = _flags(context)
    ignored = [flags[name] for name in _FOR_NEW_POOLS if name in flags and _is_typed(context, name)]
    if ignored:
        rest = "; end it with `vrampool down` to start another one" if local is not None else ""
        words = f"a pool runs already and keeps its own settings, so {', '.join(ignored)} changes nothing{rest}"
        print(f"warning: {words}", file=sys.stderr)


def _is_typed(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _flags(context: click.Context) -> dict[str, str]:
    """Return the options of a command: what they are to Python, and what one types."""
    params = [param for param in context.command.params if isinstance(param, click.Option) and param.name]
    return {str(param.name): next((flag for flag in param.opts if flag.startswith("--")), "") for param in params}


def in_words_of_options(text: str) -> str:
    """Return an error's text with the options of the command in hand where it names an argument of `Pool` or a setting.

    It does so first thing ("n_trials must be ..."), or by a name that is no word of English. An option that was not
    typed keeps the name of its setting: its value came from elsewhere.
    """
    context = click.get_current_context()
    for name, flag in _flags(context).items():
        if not flag:
            continue
        text = re.sub(rf"(?<![\w-]){name}=(?=\s)", flag, text)
        if _is_typed(context, name):
            text = re.sub(rf"^{name}\b", flag, text)
        if "_" in name and name not in _SETTING_NAMES:
            text = re.sub(rf"(?<![\w-]){name}\b(?!=)", flag, text)
    return text


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
