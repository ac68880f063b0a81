"""`vrampool report`: what a study's memory and time were spent on, in one file, and what to change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vrampool.cli.options import pool_options, take_settings
from vrampool.errors import InputError, SettingsError, StudyError, UnreachableError

if TYPE_CHECKING:
    from vrampool.memory.peaks import Taught
    from vrampool.reports.page import OnStep
    from vrampool.settings import Settings


@click.command()
@click.argument("study_name")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True,
              help="File to write; with the ending .png a picture.")  # fmt: skip
@click.option("--png", is_flag=True, help="Write a picture beside the page, too.")
@pool_options
def report(study_name: str, output: Path, png: bool, **given: Any) -> int:
    """Write a report on STUDY_NAME: memory over time, predicted against measured, where memory ran out, what to change.

    One file, without scripts, that fetches nothing. The pool need not run: the study's storage is enough. Only residue
    is not known then.
    """
    settings = take_settings(given)
    study, releases, taught = _read(settings, study_name)
    try:
        from vrampool.reports.content import make_report
        from vrampool.reports.page import write_page
        from vrampool.reports.picture import write_picture
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise InputError("a report needs matplotlib; install the extra: pip install 'vrampool[viz]'") from None
    picture = output.suffix.lower() == ".png"
    files = [output] + ([output.with_suffix(".png")] if png and not picture else [])
    with _progress() as on_step:
        on_step("reading", 0.0)
        made = make_report(study, releases, taught)
        for file in files:
            write: Any = write_picture if file.suffix.lower() == ".png" else write_page
            try:
                write(made, file, on_step)
            except OSError as error:
                raise InputError(f"cannot write {file}: {error.strerror or error}; choose another with -o") from None
    for file in files:
        print(f"wrote {file}")
    for advice in made.advice[:3]:
        print(f"what to change: {advice.title[:1].lower()}{advice.title[1:]}")
    return 0


def _read(settings: Settings, study_name: str) -> tuple[Any, Any, Any]:
    """Return the study; what came back after its trials, None where the pool's Redis is not there; what it learns from.

    The last is None where the pool's secret is not here: other studies of the same code cannot be told then.
    """
    import optuna

    from vrampool.local.starting import attach
    from vrampool.local.state import StateDir
    from vrampool.queueing import History, TransientRedisError, connect
    from vrampool.storage import open_storage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    local = attach(settings) if settings.redis is None else None
    settings = local.settings if local is not None else settings
    storage = settings.storage or StateDir(settings).database_url
    if settings.storage is None and not (settings.state_dir / "study.db").exists():
        raise StudyError(f"no study is kept in {settings.state_dir}: name its storage with --storage")
    opened = open_storage(storage, create_schema=False)
    try:
        study = optuna.load_study(study_name=study_name, storage=opened)
    except KeyError:
        known = ", ".join(sorted(item.study_name for item in opened.get_all_studies())[-5:])
        raise StudyError(f"there is no study {study_name!r}{f'; known: {known}' if known else ''}") from None
    taught = _taught(settings, opened, study)
    if settings.redis is None:
        return study, None, taught
    try:
        return study, History(connect(settings.redis, role="client"), settings.pool).releases(study_name), taught
    except (UnreachableError, TransientRedisError) as error:
        print(f"residue is not known: {error}", file=sys.stderr)
        return study, None, taught


def _taught(settings: Settings, storage: Any, study: Any) -> Taught | None:
    """Return what the pool learns from."""
    from vrampool.coordinator.earlier import taught
    from vrampool.signing import load_secret

    try:
        signer = load_secret(settings, create=False)
    except SettingsError:
        return None
    return taught(storage, signer, study.study_name, study.get_trials(deepcopy=False))


@contextmanager
def _progress() -> Iterator[OnStep]:
    """Show how far it is where standard error is a terminal; say nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield lambda _what, _part: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=30))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading", total=1.0)
        yield lambda what, part: progress.update(task, description=what.lower(), completed=part)
