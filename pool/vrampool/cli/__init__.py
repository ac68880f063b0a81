"""The command `vrampool`. Commands are imported when they are called, so that help and errors come at once."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from typing import Any

import click

from vrampool._version import __version__
from vrampool.errors import InputError, VrampoolError

_COMMANDS = {
    "run": "vrampool.cli.run:run",
    "submit": "vrampool.cli.run:submit",
    "status": "vrampool.cli.look:status",
    "why": "vrampool.cli.look:why",
    "explain": "vrampool.cli.explain:explain",
    "probe": "vrampool.cli.probe:probe",
    "dashboard": "vrampool.cli.dashboard:dashboard",
    "top": "vrampool.cli.top:top",
    "logs": "vrampool.cli.logs:logs",
    "report": "vrampool.cli.report:report",
    "stop": "vrampool.cli.manage:stop",
    "up": "vrampool.cli.manage:up",
    "down": "vrampool.cli.manage:down",
    "drain": "vrampool.cli.operate:drain",
    "pause": "vrampool.cli.operate:pause",
    "resume": "vrampool.cli.operate:resume",
    "coordinator": "vrampool.cli.serve:coordinator",
    "health": "vrampool.cli.health:health",
    "doctor": "vrampool.cli.doctor:doctor",
}
#: Commands of other distributions parts join here; `worker` comes from the data plane, which is never imported by name.
COMMAND_GROUP = "vrampool.commands"


def _entry_points() -> list[Any]:
    from importlib import metadata  # a quarter of the time of `vrampool health`, which needs none of it

    return list(metadata.entry_points(group=COMMAND_GROUP))


class _LazyGroup(click.Group):
    """Finds commands by name: own ones in the table above, the rest through the entry-point group."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        joined = [point.name for point in _entry_points()]
        return [*_COMMANDS, *sorted(set(joined) - set(_COMMANDS))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module, _, name = _COMMANDS[cmd_name].partition(":")
            found: Any = getattr(importlib.import_module(module), name)
        else:
            points = [point for point in _entry_points() if point.name == cmd_name]
            if not points:
                return None
            found = points[0].load()
        assert isinstance(found, click.Command)
        return _naming_options(found)


def _naming_options(command: click.Command) -> click.Command:
    """Have a command tell wrong input by the options that were typed, not by what they are to Python."""
    call = command.callback
    if call is None or getattr(call, "names_options", False):
        return command

    @functools.wraps(call)
    def named(*arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except InputError as error:
            from vrampool.cli.options import in_words_of_options

            text = in_words_of_options(str(error))
            if text == str(error):
                raise
            raise type(error)(text) from error

    named.names_options = True  # type: ignore[attr-defined]
    command.callback = named
    return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vrampool")
def command() -> None:
    """Run Optuna studies on a pool of GPUs: trials run side by side as long as their memory fits."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 done, 1 the study failed, 2 wrong input, 3 a device is lost, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    warnings.showwarning = _show_warning
    try:
        code = command.main(args=arguments, prog_name="vrampool", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except VrampoolError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except click.ClickException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output (`| head`) has gone; Python would complain again at exit.
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if debug:
            raise
        print(f"error: {type(error).__name__}: {error}; --debug shows where", file=sys.stderr)
        sys.exit(1)


def _show_warning(message: Warning | str, *_where: object, **_more: object) -> None:
    """Show a warning as the line it is: where in our source it arose says nothing to who reads it."""
    print(f"warning: {message}", file=sys.stderr)
