"""`vrampool status` says of a study what all its submissions together have come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from optuna.study import StudyDirection

from vrampool.cli.study_lines import by_study, study_line
from vrampool.handle import Progress


@dataclass
class Best:
    value: float = 0.25
    number: int = 4


@dataclass
class Study:
    directions: tuple[StudyDirection, ...] = (StudyDirection.MINIMIZE,)


@dataclass
class PaperHandle:
    """A submission of which only its progress is read."""

    study_name: str
    where: Progress
    best: Best | None = None
    study: Study = field(default_factory=Study)

    def progress(self) -> Progress:
        return self.where

    @property
    def best_trial(self) -> Best:
        if self.best is None:
            raise ValueError
        return self.best


def submission(
    name: str,
    state: str,
    wanted: int | None,
    finished: int,
    running: int = 0,
    *,
    best: Best | None = None,
    **counts: int,
) -> Any:
    progress = Progress(state, "", wanted, finished, running, 0, counts)
    return cast(Any, PaperHandle(name, progress, best))


def test_submissions_of_a_study_are_one_line_and_the_one_asked_for_last_comes_last():
    first, other, second = submission("a", "done", 3, 3), submission("b", "done", 1, 1), submission("a", "open", 5, 1)
    assert by_study([first, other, second]) == [[other], [first, second]]


@pytest.mark.parametrize(
    ("submissions", "line"),
    [
        ([submission("a", "open", 30, 0, 3)], "a: open, 0/30 finished, 3 running"),
        ([submission("a", "open", None, 2, 1, COMPLETE=2)], "a: open, 2 finished, 1 running (2 complete)"),
        (
            [
                submission("a", "done", 10, 10, COMPLETE=9, FAIL=1),
                submission("a", "open", 5, 2, 1, COMPLETE=2, best=Best()),
            ],
            "a: open, 12/15 finished, 1 running (11 complete, 1 fail, 2 submissions), best 0.25 (trial 4)",
        ),
        (
            [submission("a", "stopped", 17, 3, COMPLETE=3, best=Best())],
            "a: stopped, 3 finished (3 complete), best 0.25 (trial 4)",
        ),
    ],
)
def test_a_study_is_told_in_one_line(submissions, line):
    assert study_line(submissions) == line
