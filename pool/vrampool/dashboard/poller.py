"""One poller for all who look: a thread for devices, another for studies, so that a slow database holds up no curve."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from vrampool.dashboard.board import Board
from vrampool.errors import VrampoolError

_log = logging.getLogger("vrampool.dashboard")
DEVICES_S = 1.0
STUDIES_S = 2.0
#: Nobody looks: nothing is read any more after so long.
_REST_AFTER_S = 30.0
#: A reading that takes long is followed by a pause so many times as long.
_REST_PER_WORK = 4.0
#: What Prometheus is told is at most so old.
FRESH_S = 2.0


class _Round:
    """A thread that does one thing again and again while somebody looks."""

    def __init__(self, name: str, interval_s: float, work: Callable[[], None], busy: Callable[[], bool]) -> None:
        self._interval_s = interval_s
        self._work = work
        self._busy = busy
        self._wake = threading.Event()
        self._stopped = False
        self._done = threading.Condition()
        self._done_at_s = -1e9
        self._thread = threading.Thread(target=self._run, name=f"vrampool-dashboard-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        self._thread.join(2.0)  # one that hangs in a database is left: it is a daemon

    def wake(self) -> None:
        self._wake.set()

    def fresh(self, age_s: float, timeout_s: float) -> bool:
        """Wait until a reading is not older than so long. False: none came in time."""
        deadline_s = time.monotonic() + timeout_s
        with self._done:
            while time.monotonic() - self._done_at_s > age_s:
                self._wake.set()
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._stopped:
                    return False
                self._done.wait(left_s)
        return True

    def _run(self) -> None:
        while not self._stopped:
            began_s = time.monotonic()
            self._work()
            pause_s = max(self._interval_s, _REST_PER_WORK * (time.monotonic() - began_s))
            with self._done:
                self._done_at_s = time.monotonic()
                self._done.notify_all()
            self._wake.wait(pause_s if self._busy() else None)
            self._wake.clear()  # here: what woke us while we worked must not be forgotten, the stop least of all


class Poller:
    """Keeps the board up to date and tells those who look.

    Args:
        board: What is shown.
        tell: Called from the poller's threads with the name of an event and its content.
        watched: Whether anybody looks now.
    """

    def __init__(self, board: Board, tell: Callable[[str, Any], None], watched: Callable[[], bool]) -> None:
        self._board = board
        self._tell = tell
        self._watched = watched
        self._last_watched_s = time.monotonic()
        self._away: set[str] = set()
        self._devices = _Round("devices", DEVICES_S, self._look_at_devices, self._busy)
        self._studies = _Round("studies", STUDIES_S, self._look_at_studies, self._busy)

    def start(self) -> None:
        self._devices.start()
        self._studies.start()

    def stop(self) -> None:
        self._devices.stop()
        self._studies.stop()

    def wake(self) -> None:
        """Read at once: somebody has come, or something was done."""
        self._last_watched_s = time.monotonic()
        self._devices.wake()
        self._studies.wake()

    def refresh(self, timeout_s: float = 5.0) -> bool:
        """Wait until the board is up to date; it blocks. False: Redis or the storage took too long."""
        devices = self._devices.fresh(FRESH_S, timeout_s)
        return self._studies.fresh(FRESH_S + STUDIES_S, timeout_s) and devices

    def _busy(self) -> bool:
        now_s = time.monotonic()
        if self._watched():
            self._last_watched_s = now_s
        return now_s - self._last_watched_s < _REST_AFTER_S

    def _look_at_devices(self) -> None:
        try:
            message = self._board.look_at_devices()
            self._back("Redis")
        except VrampoolError as error:
            message = self._board.redis_away(self._told("Redis", error))
        except Exception as error:
            _log.exception("the devices could not be read")
            message = self._board.redis_away(f"the devices cannot be read: {error}")
        self._tell("devices", message)

    def _look_at_studies(self) -> None:
        try:
            message = self._board.look_at_studies()
            self._back("The storage")
        except VrampoolError as error:
            self._tell("devices", self._board.storage_away(self._told("The storage", error)))
            return
        except Exception as error:
            _log.exception("the studies could not be read")
            self._tell("devices", self._board.storage_away(f"the studies cannot be read: {error}"))
            return
        if message is not None:
            self._tell("studies", message)

    def _told(self, who: str, error: VrampoolError) -> str:
        if who not in self._away:
            self._away.add(who)
            _log.warning("%s", error)
        return f"{str(error).splitlines()[0]} (what is shown is old)"

    def _back(self, who: str) -> None:
        if who in self._away:
            self._away.discard(who)
            _log.warning("%s answers again", who)
