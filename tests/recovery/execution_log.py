"""What the objectives themselves say: which trial began and ended, how often, and in which process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


class ExecutionLog:
    """The file that the objectives write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _lines(self, word: str) -> list[list[str]]:
        try:
            lines = [line.split() for line in self.path.read_text().splitlines()]
        except FileNotFoundError:
            return []
        return [line for line in lines if line[0] == word]

    def times(self, word: str) -> Counter[int]:
        """How often each trial, by its number, wrote a word: "started", "ended"."""
        return Counter(int(line[1]) for line in self._lines(word))

    def pid(self, number: int) -> int | None:
        """The process in which a trial began; None before that."""
        found = [int(line[2]) for line in self._lines("started") if int(line[1]) == number]
        return found[-1] if found else None

    @property
    def ended(self) -> int:
        return len(self._lines("ended"))

    @property
    def started(self) -> int:
        return len(self._lines("started"))
