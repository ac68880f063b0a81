"""What spares import ahead: some modules always, others once a trial was seen to need them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: At the end of a name in the list: only once a trial has imported it by itself.
ON_SIGHT = "?"
_REMEMBERED = 64


class Preloading:
    """The list of a worker's spares; it grows by what its trials import.

    An import of torch._dynamo costs as much as that of torch, and only trials with an optimizer need it: for all others
    each spare would do its work twice.

    Args:
        names: Modules; those with a `?` at the end are imported ahead once a trial was seen to import them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.everything = tuple(name.removesuffix(ON_SIGHT) for name in names)
        self._awaited = {name.removesuffix(ON_SIGHT) for name in names if name.endswith(ON_SIGHT)}
        self._needs: dict[str, bool] = {}  #: by submission

    @property
    def now(self) -> tuple[str, ...]:
        """Return what a spare that is started now imports."""
        return tuple(name for name in self.everything if name not in self._awaited)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Return what is imported ahead only once a trial has needed it."""
        return tuple(sorted(self._awaited))

    def seen(self, imported: Iterable[str]) -> None:
        """Take note of what a trial had imported when it ended."""
        self._awaited -= set(imported)

    def note(self, submission_id: str, imported: Iterable[str]) -> None:
        """Take note of what a trial had imported by itself, in a process that had nothing imported ahead."""
        self._needs.pop(submission_id, None)
        self._needs[submission_id] = not set(imported).isdisjoint(self.now)
        if len(self._needs) > _REMEMBERED:
            del self._needs[next(iter(self._needs))]

    def needs(self, submission_id: str) -> bool | None:
        """Whether a submission's trials need what spares import; None: none has shown it yet."""
        return self._needs.get(submission_id)
