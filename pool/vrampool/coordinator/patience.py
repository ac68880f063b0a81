"""How long a submission has found no room for even one trial, while others had the devices: pure.

Trials are created when a device has room for them. A submission whose trials are large, or of which nothing is known
yet, would never see such a moment beside others that fill every gap. So after the age limit one trial of it is created
all the same. It counts as passed over for that long, and a device is kept free for it at once.
"""

from __future__ import annotations

from collections.abc import Iterable


class Patience:
    """The clocks of all submissions.

    Args:
        limit_s: The age limit.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since_s: dict[str, float] = {}

    def forget(self) -> None:
        """End all clocks: nobody is without room now."""
        self._since_s.clear()

    def exhausted(self, without_room: Iterable[str], now_s: float) -> dict[str, float]:
        """Return those for which it is over, and for how many seconds each has waited.

        Args:
            without_room: Ids of submissions that want a trial, have none under way, and find no room for it. The
                others' clocks end.
            now_s: Now, of a clock that only goes forward.
        """
        self._since_s = {name: self._since_s.get(name, now_s) for name in without_room}
        waited = {name: now_s - since_s for name, since_s in self._since_s.items()}
        return {name: seconds for name, seconds in waited.items() if seconds >= self._limit_s}
