"""What the page lets people do: stop a study, pause, drain and resume a worker. Each needs the token."""

from __future__ import annotations

import time
import uuid
from typing import Protocol

from vrampool.dashboard.source import PoolSource
from vrampool.errors import InputError, VrampoolError
from vrampool.storage import SubmissionState

_ANSWER_S = 8.0
_AGAIN_S = 1.0
_BY = "from the dashboard"


class Actions(Protocol):
    """What can be done. Methods block; they return a sentence, and raise `VrampoolError` when it cannot be done."""

    def study(self, action: str, name: str) -> str: ...

    def worker(self, action: str, name: str) -> str: ...


class PoolActions:
    """Does it on a pool that runs."""

    def __init__(self, source: PoolSource) -> None:
        self._source = source

    def study(self, action: str, name: str) -> str:
        """Stop a study ("stop": running trials finish; "cancel": they are ended)."""
        steps = {
            "stop": (SubmissionState.STOPPING, (SubmissionState.OPEN,)),
            "cancel": (
                SubmissionState.CANCELLING,
                (SubmissionState.OPEN, SubmissionState.STOPPING, SubmissionState.FAILING),
            ),
        }
        if action not in steps:
            raise InputError(f"a study can be stopped or cancelled, not {action!r}")
        state, expected = steps[action]
        reason = f"{'stopped' if action == 'stop' else 'cancelled'} {_BY}"
        rows = [row for row in self._source.catalog.submissions(expected) if row.study_name == name]
        moved = 0
        for row in rows:
            if self._source.catalog.set_submission_state(row.id, state, reason, expected=expected):
                self._source.events.publish({"submission": row.id, "state": str(state)})
                moved += 1
        if not moved:
            raise InputError(f"study {name} has nothing left to {action}")
        return f"{name}: " + ("no more trials; running ones finish" if action == "stop" else "its trials are ended")

    def worker(self, action: str, name: str) -> str:
        """Send a signed command to a worker and wait until it has obeyed."""
        done = {"pause": "takes no new trials", "drain": "finishes its trials and ends", "resume": "takes trials again"}
        if action not in done:
            raise InputError(f"a worker can be paused, drained or resumed, not {action!r}")
        if name not in {record.name for record in self._source.registry.workers()}:
            raise InputError(f"no worker {name} is there any more")
        command_id = uuid.uuid4().hex
        deadline_s = time.monotonic() + _ANSWER_S
        events = self._source.events
        with events.subscribe() as answers:
            while time.monotonic() < deadline_s:
                events.command(action, workers=[name], id=command_id, reason=_BY)
                again_s = time.monotonic() + _AGAIN_S
                while (left_s := again_s - time.monotonic()) > 0:
                    for event in answers.wait(left_s):
                        if (event.get("kind"), event.get("id"), event.get("worker")) == ("obeyed", command_id, name):
                            return f"{name} {done[action]}"
        raise VrampoolError(f"no answer from {name} within {_ANSWER_S:.0f} s; see its log")
