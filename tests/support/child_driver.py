"""Drives real children from a test, as a worker's main loop does: one selector, timers, a served trial.

::

    def test_something(driver):
        story = driver.run("def objective(trial): return trial.suggest_float('x', 0, 1)")
        assert story.outcome.kind == "value"

`driver` is the fixture of this module; a folder's conftest.py makes it known with
``from support.child_driver import driver  # noqa: F401``.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from vrampool.messages import ChildStart, ObjectiveRef, Outcome
from vrampool.objectives import resolve
from vrampool.settings import Settings
from vrampool_worker.children.child import Child, Event, EventKind, spawn
from vrampool_worker.lanes import Timers, turn
from vrampool_worker.trial_server import TrialServer, describe_error

LIMIT_S = 30.0


@dataclass
class Story:
    """What happened to one child, and the trial it served."""

    child: Child
    log_path: Path
    study: optuna.Study | None = None
    trial: optuna.Trial | None = None
    server: TrialServer | None = None
    events: list[Event] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]

    def first(self, kind: EventKind) -> Mapping[str, Any] | None:
        """Return the data of the first event of a kind."""
        return next((event.data for event in self.events if event.kind is kind), None)

    @property
    def outcome(self) -> Outcome:
        data = self.first(EventKind.OUTCOME)
        assert data is not None, f"no outcome: {self}"
        return Outcome.from_json(data)

    @property
    def exited(self) -> Mapping[str, Any]:
        data = self.first(EventKind.EXITED)
        assert data is not None, f"not exited: {self}"
        return data

    @property
    def log(self) -> str:
        return self.log_path.read_bytes().decode(errors="replace")

    def __str__(self) -> str:
        return f"{self.kinds} {self.child.outcome} log: {self.child.log_tail()}"


class ChildDriver:
    """A main loop for tests. Everything is closed and ended by `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings(state_dir=folder / "state")
        self.selector = selectors.DefaultSelector()
        self.timers = Timers()
        self.stories: dict[Child, Story] = {}
        self.serve_calls = True
        self._numbers = 0

    # ---- making --------------------------------------------------------------------------------------

    def spawn(self, preload: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> Story:
        """Start a child and return its story, which grows while the loop runs."""
        self._numbers += 1
        child = spawn(dict(os.environ if env is None else env), preload, self.settings)
        story = Story(child, self.folder / f"log{self._numbers}")
        self.stories[child] = story
        child.register(self.selector, self._on_event, self.timers.at)
        return story

    def module(self, source: str, name: str = "objective") -> str:
        """Write a module into the test's folder and return its target."""
        self._numbers += 1
        path = self.folder / f"made_{self._numbers}.py"
        path.write_text(source)
        return f"{path}:{name}"

    def start(
        self,
        story: Story,
        objective: str | Callable[..., Any] | tuple[ObjectiveRef, bytes | None],
        *,
        study: optuna.Study | None = None,
        **fields: Any,
    ) -> Story:
        """Hand a trial to a child. A text with a newline or "def" in it is the source of the objective's module."""
        if isinstance(objective, tuple):
            reference, bundle = objective
        else:
            if isinstance(objective, str) and "def " in objective:
                objective = self.module(objective)
            reference, bundle = resolve(objective)
        story.study = study or optuna.create_study()
        story.trial = story.study.ask()
        story.server = TrialServer(story.study, story.trial)
        start = ChildStart(objective=reference, trial=story.server.snapshot(), sample_interval_s=0.1)
        story.child.begin(replace(start, **fields), bundle, story.log_path)
        return story

    def run(self, objective: Any, *, limit_s: float = LIMIT_S, **fields: Any) -> Story:
        """Run one trial in a new child, to the end."""
        story = self.start(self.spawn(), objective, **fields)
        self.until(lambda: story.child.gone, limit_s=limit_s)
        return story

    # ---- the loop ------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], *, limit_s: float = LIMIT_S) -> None:
        """Run the loop until something holds; fail with all stories when it does not in time."""
        end_s = time.monotonic() + limit_s
        while not condition():
            now_s = time.monotonic()
            if now_s > end_s:
                told = "\n".join(str(story) for story in self.stories.values())
                raise AssertionError(f"not within {limit_s} s:\n{told}")
            self.turn(0.02)

    def turn(self, limit_s: float) -> None:
        """One turn of the loop."""
        turn(self.selector, self.timers.wait_s(time.monotonic(), limit_s))
        self.timers.run(time.monotonic())

    def _on_event(self, child: Child, event: Event) -> None:
        story = self.stories[child]
        story.events.append(event)
        if event.kind is EventKind.CALL and self.serve_calls:
            self.serve(story, event)

    def serve(self, story: Story, event: Event) -> None:
        """Answer a call, as a worker's storage thread would."""
        assert story.server is not None
        data = event.data
        story.calls.append(data["name"])
        try:
            value = story.server.handle(data["name"], data["args"])
        except Exception as error:
            story.child.reply(data["id"], error=describe_error(error))
        else:
            story.child.reply(data["id"], value=value)

    def close(self) -> None:
        for story in self.stories.values():
            story.child.kill()
        self.until(lambda: all(story.child.gone for story in self.stories.values()), limit_s=10)
        self.until(lambda: all(not _is_child(story.child.keeper_pid) for story in self.stories.values()), limit_s=10)
        self.selector.close()


def _is_child(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    except (FileNotFoundError, ProcessLookupError):
        return False


def alive(pid: int) -> bool:
    """Return whether a process lives; a corpse does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], Any], *, limit_s: float = 10.0) -> None:
    """Poll until something outside the loop holds."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {limit_s} s"
        time.sleep(0.005)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[ChildDriver]:
    made = ChildDriver(tmp_path)
    yield made
    made.close()


def recapped(asked: int, cap: int, *, freed: int = 0, held: int | None = None, enforced: bool = True) -> dict:
    """What a child answers when its cap is moved."""
    return {"asked_bytes": asked, "cap_bytes": cap, "freed_bytes": freed, "held_bytes": held, "enforced": enforced}
