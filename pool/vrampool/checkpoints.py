"""Checkpoints: what a trial leaves on disk so that its next attempt need not begin anew.

A trial that is handed back, loses its worker or runs out of memory is tried again as another trial of the same root.
Each attempt has a directory of its own, so one that was thought dead and still writes disturbs nobody::

    <folder>/<pool>/<submission>/<root trial>/<attempt>/000003

A numbered directory is a complete checkpoint: it was written under another name, brought to the disk, and then
renamed, which happens whole or not at all. Whatever has another name is half written, or half removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from vrampool.errors import InputError
from vrampool.settings import Settings

_COMPLETE = re.compile(r"\d{6,}")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_WRITING = ".writing-"
_GONE = ".gone-"
_KEEP = "keep"


def checkpoint(trial: Any, *, last: int = 1, keep: bool = False) -> Checkpoint:
    """Return where a trial keeps its checkpoints. Call it in the objective.

    ::

        def objective(trial):
            checkpoint = vrampool.checkpoint(trial)
            model, first = new_model(trial), 0
            if checkpoint.latest is not None:
                first = load(model, checkpoint.latest / "state.pt") + 1
            for epoch in range(first, 50):
                train(model)
                with checkpoint.save() as folder:
                    save(model, epoch, folder / "state.pt")

    Without a pool (``study.optimize(objective)``) it works too, in a directory that ends with the process.

    Args:
        trial: The objective's trial.
        last: How many complete checkpoints of the root trial are kept; older ones are removed as new ones come.
        keep: Leave them when the root trial has ended for good; else they are removed then.

    Raises:
        InputError: `last` is less than 1.
    """
    if last < 1:
        raise InputError(f"last must be at least 1, not {last}: the newest checkpoint is always kept")
    place = getattr(trial, "checkpoint_place", None)
    if place is None:
        return Checkpoint(Path(_own_folder()), 1, last=last, keep=keep)
    return Checkpoint(
        Path(place["folder"]),
        int(place["attempt"]),
        last=last,
        keep=keep,
        hold=getattr(trial, "hold_stop", contextlib.nullcontext),
    )


class Checkpoint(os.PathLike[str]):
    """The checkpoints of one root trial, as one attempt at it sees them. A path: the attempt's own directory.

    Args:
        root_folder: Where all attempts at the root trial have their directories.
        attempt: Number of this attempt, from 1.
        last: How many complete checkpoints are kept.
        keep: They stay when the root trial has ended.
        hold: Keeps a request to stop back for as long as a block lasts.
    """

    def __init__(
        self,
        root_folder: Path,
        attempt: int,
        *,
        last: int = 1,
        keep: bool = False,
        hold: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._root_folder = root_folder
        self.attempt = attempt
        self._last = last
        self._keep = keep
        self._hold = hold

    def __repr__(self) -> str:
        return f"<checkpoints of attempt {self.attempt} in {self._root_folder}>"

    def __fspath__(self) -> str:
        return str(self.directory)

    @property
    def directory(self) -> Path:
        """This attempt's own directory, for whatever it likes to leave there. Only `save` makes a checkpoint of it."""
        own = self._root_folder / str(self.attempt)
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._keep:
            (self._root_folder / _KEEP).touch()
        return own

    @property
    def latest(self) -> Path | None:
        """The newest complete checkpoint of this attempt or, before it has one, of the ones before it; None: none."""
        found = self._complete()
        return found[-1] if found else None

    @contextmanager
    def save(self) -> Iterator[Path]:
        """Write a checkpoint into the directory that this gives; it is complete when the block ends without an error.

        A request to stop that comes while it is written waits for its end, for as long as the pool gives a trial to
        stop (`stop_ask_s`). Older checkpoints are removed afterwards.

        Raises:
            OSError: the disk is full, or cannot be written. The checkpoint before stays.
        """
        with self._hold():
            own = self.directory
            scratch = own / f"{_WRITING}{uuid.uuid4().hex}"
            scratch.mkdir(mode=0o700)
            try:
                yield scratch
                _to_disk(scratch)
                self._complete_as_next(scratch, own)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            self._tidy()

    def remove(self) -> None:
        """Remove all checkpoints of the root trial; the next attempt, if there is one, begins anew."""
        _remove(self._root_folder)

    def _complete(self) -> list[Path]:
        """Return all complete checkpoints of this attempt and those before it, oldest first."""
        found = []
        for attempt, folder in _numbered(self._root_folder, re.compile(r"\d+")):
            if attempt <= self.attempt:
                found += [(attempt, number, path) for number, path in _numbered(folder, _COMPLETE)]
        return [path for *_, path in sorted(found)]

    def _complete_as_next(self, scratch: Path, own: Path) -> None:
        number = max((number for number, _ in _numbered(own, _COMPLETE)), default=0)
        while True:
            number += 1
            target = own / f"{number:06d}"
            try:
                scratch.rename(target)
                break
            except OSError:
                if not target.exists():
                    raise
                continue  # another thread of the trial was quicker
        _sync(own)

    def _tidy(self) -> None:
        """Remove what is not needed any more: older checkpoints, and what attempts before left half written."""
        for path in self._complete()[: -self._last]:
            _remove(path)
        for attempt, folder in _numbered(self._root_folder, re.compile(r"\d+")):
            for path in folder.iterdir() if attempt < self.attempt else ():
                if path.name.startswith((_WRITING, _GONE)):
                    shutil.rmtree(path, ignore_errors=True)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    try:
        return [(int(path.name), path) for path in folder.iterdir() if pattern.fullmatch(path.name)]
    except FileNotFoundError:
        return []


def _to_disk(folder: Path) -> None:
    """Bring a tree to the disk: a name that survives a power cut must not lead to files that did not."""
    for path, _, names in os.walk(folder):
        for name in names:
            _sync(Path(path, name))
        _sync(Path(path))


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # a link, a socket: not ours to bring anywhere
        return
    try:
        os.fsync(handle)
    except OSError:  # a file system that cannot, or a pipe
        pass
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    """Remove a directory; half removed, it must not look complete."""
    gone = folder.with_name(f"{_GONE}{uuid.uuid4().hex}")
    try:
        folder.rename(gone)
    except OSError:
        gone = folder  # it is gone already, or its parent cannot be written
    shutil.rmtree(gone, ignore_errors=True)


_folders: list[tempfile.TemporaryDirectory[str]] = []


def _own_folder() -> str:
    _folders.append(tempfile.TemporaryDirectory(prefix="vrampool-checkpoints-"))
    return _folders[-1].name


# ---- for the worker ------------------------------------------------------------------------------------


class CheckpointFolder:
    """All checkpoints of a pool, on this host or in a folder that several hosts share.

    Args:
        settings: `checkpoint_dir` says where; the state directory if it does not.
    """

    def __init__(self, settings: Settings) -> None:
        self.path = (settings.checkpoint_dir or settings.state_dir / "checkpoints") / settings.pool

    def of_root(self, submission_id: str, root: int) -> Path:
        """Return where a root trial's attempts have their directories.

        Raises:
            ValueError: an id that is no name of a directory: it was not made by us.
        """
        if not _NAME.fullmatch(submission_id):
            raise ValueError(f"{submission_id!r} is no id of a submission")
        return self.path / submission_id / str(int(root))

    def submissions(self) -> list[str]:
        """Return the ids of submissions that have something here."""
        try:
            return sorted(path.name for path in self.path.iterdir() if _NAME.fullmatch(path.name))
        except OSError:
            return []

    def remove_root(self, submission_id: str, root: int) -> None:
        """Remove the checkpoints of a root trial that has ended for good, unless they are to be kept."""
        folder = self.of_root(submission_id, root)
        if folder.is_dir() and not (folder / _KEEP).exists():
            _remove(folder)
        with contextlib.suppress(OSError):  # others of the submission have theirs
            folder.parent.rmdir()

    def remove_submission(self, submission_id: str) -> None:
        """Remove whatever a submission that has ended left here, but for what is to be kept."""
        folder = self.of_root(submission_id, 0).parent
        with contextlib.suppress(OSError):
            for path in list(folder.iterdir()):
                if not (path / _KEEP).exists():
                    _remove(path)
            folder.rmdir()
