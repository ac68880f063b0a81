"""What a worker hears from the pool, and the sign of life it gives: events, signed commands, a file that is touched."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from vrampool.health import TOUCH_S, SignOfLife
from vrampool.queueing import Subscription, calls
from vrampool.queueing.outputs import COMMAND
from vrampool.storage import FINAL_STATES
from vrampool_worker.beat import Beat
from vrampool_worker.output_desk import LOOK_S, OutputDesk

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: The main loop never waits for anything, so one that is silent for so long hangs.
STUCK_S = 15.0


class Listener:
    """Hears events for a worker's main loop, in that loop. `start` before the loop runs.

    Args:
        loop: The main loop.
        events: What is heard; its commands are signed by a holder of the pool's secret.
        beat: Knows when Redis last answered.
    """

    def __init__(self, loop: WorkerLoop, events: Subscription, beat: Beat) -> None:
        self._loop = loop
        self._events = events
        self._beat = beat
        self._end_when_idle = False
        self._outputs = OutputDesk(loop)
        self._sign = SignOfLife(loop.settings.state_dir, "worker", loop.device.id, name=loop.name, limit_s=STUCK_S)

    def start(self) -> None:
        self._loop.watch(self._events.fileno(), self._hear)
        self._loop.every(TOUCH_S, self._look)
        self._loop.every(LOOK_S, self._outputs.look)
        self._show()

    def close(self) -> None:
        """The worker ends in order."""
        self._sign.remove()

    # ---- events --------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Look at the queue when something changed, and at what runs when a submission was cancelled."""
        found = self._events.read()
        for event in found:
            if "command" in event:
                self._obey(event)
            elif "keep_leases" in event:
                self._loop.memory.moves.keep(str(event["keep_leases"]), str(event.get("reason", "")))
        if any(event.get("state") == "cancelling" for event in found):
            self._loop.audit.look()
        if any(str(event.get("state")) in FINAL_STATES for event in found):
            self._loop.checkpoints.sweep()
        if any(calls(event) for event in found):
            self._loop.wake()

    def _obey(self, message: dict[str, Any]) -> None:
        """Do what a signed command says, and say so: whoever sent it repeats it until then."""
        if self._loop.name not in message.get("workers", ()):
            return
        if message["command"] == COMMAND:
            self._outputs.asked(message)
            return
        command, reason = str(message["command"]), str(message.get("reason", "a command"))
        ledger = self._loop.ledger
        if command == "pause":
            self._loop.paused = reason
            ledger.pause(reason)
        elif command == "drain":
            self._end_when_idle = not message.get("stay")
            ledger.drain(reason)
        elif command == "resume" and not self._loop.draining:
            self._loop.paused = None
            self._end_when_idle = False
            ledger.resume()
        else:
            _log.warning("the command %s was not obeyed", command)
            return
        _log.info("%s: %s", command, reason)
        self._show()
        done = {"kind": "obeyed", "id": message.get("id"), "worker": self._loop.name}
        self._loop.queue_lane.submit(lambda: self._loop.port.answer(done), lambda _result, _error: None)

    # ---- about every second ----------------------------------------------------------------------------

    def _look(self) -> None:
        if self._end_when_idle and not self._loop.attempts and not self._loop.draining:
            self._loop.request_stop()
        self._show()

    def _show(self) -> None:
        loop = self._loop
        state, reason = loop.ledger.state
        silent_s = time.monotonic() - self._beat.last_s
        if not loop.connected:
            state, reason = "starting", "the study storage does not answer yet"
        elif state == "ready" and silent_s > 2 * loop.settings.lease_ttl_s:
            state, reason = "cut off", f"Redis has not answered for {silent_s:.0f} s"
        self._sign.show(state, ready=state == "ready", reason=reason, running=len(loop.attempts))
