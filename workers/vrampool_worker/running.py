"""Attempts while their children live: start, serve their calls, watch their memory and time, settle their end."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.exceptions import UpdateFinishedTrialError

from vrampool.messages import ChildStart, EndKind, MemorySample, Outcome, Verdict
from vrampool.settings import output_path
from vrampool_worker.attempts import Attempt, Stage
from vrampool_worker.children.child import Child, Event, EventKind
from vrampool_worker.desk import Opened
from vrampool_worker.endings import Place
from vrampool_worker.gap_watch import GapWatch, allocator_options
from vrampool_worker.kernel_kills import count_kills
from vrampool_worker.settlement import Conclusion, conclude
from vrampool_worker.stopped_watch import StoppedWatch
from vrampool_worker.trial_server import describe_error

if TYPE_CHECKING:
    from vrampool_worker.worker import WorkerLoop

_log = logging.getLogger("vrampool.worker")

#: A child that has not begun its objective by then hangs in an import of the pool's own list.
START_LIMIT_S = 120.0


class Runner:
    """Everything about children that run a trial. Only the main loop calls it."""

    def __init__(self, loop: WorkerLoop) -> None:
        self._loop = loop
        self.children: set[Child] = set()
        self._attempts: dict[Child, Attempt] = {}
        self._awaiting: dict[Attempt, Opened] = {}  #: in the order in which they were claimed
        self.stopped = StoppedWatch(loop)

    # ---- starting ------------------------------------------------------------------------------------

    def start(self, attempt: Attempt, opened: Opened) -> None:
        """Hand a claimed trial to a child, or have it wait for one that is there in a moment."""
        loop = self._loop
        attempt.spec, attempt.server = opened.spec, opened.server
        attempt.request_reason = opened.request_reason
        attempt.handed_at_s = time.monotonic()
        if opened.keep_leases:
            loop.memory.moves.keep(attempt.ticket.submission_id, opened.keep_leases)
        if loop.spares.soon(attempt.handed_at_s):
            attempt.stage = Stage.AWAITING
            self._awaiting[attempt] = opened
        else:
            self._hand_over(attempt, opened)

    def start_awaiting(self, now_s: float) -> None:
        """Hand over the trials that wait for a child, once that is there, or will not be soon after all."""
        if self._awaiting and not self._loop.spares.soon(now_s):
            for attempt in list(self._awaiting):
                self._hand_over(attempt, self._awaiting.pop(attempt))

    def _hand_over(self, attempt: Attempt, opened: Opened) -> None:
        loop = self._loop
        assert attempt.handed_at_s is not None
        loop.memory.moves.lend(attempt, opened.wish_bytes, attempt.handed_at_s)
        attempt.cap_bytes = loop.memory.cap(attempt)
        room_bytes = attempt.cap_bytes if loop.device.kind == "cpu" else None
        child = loop.spares.take(loop.supply.needs(attempt.ticket.submission_id), room_bytes)
        attempt.child = child
        attempt.spare = child.ready
        attempt.started_epoch_s = time.time()
        attempt.stage = Stage.RUNNING
        self._attempts[child] = attempt
        attempt.log_path = str(self.log_path(attempt.ticket.study_name, attempt.ticket.number))
        child.begin(self._message(attempt, opened), opened.bundle, Path(attempt.log_path))
        attempt.kills_before = count_kills()  # a millisecond, and the trial need not wait for it
        loop.keepers_changed()
        loop.timers.at(time.monotonic() + START_LIMIT_S, lambda: self._check_started(attempt))

    def _message(self, attempt: Attempt, opened: Opened) -> ChildStart:
        device = self._loop.device
        return ChildStart(
            objective=opened.spec.objective,
            trial={**opened.snapshot, "checkpoints": self._loop.checkpoints.place(attempt, opened.snapshot)},
            has_bundle=opened.bundle is not None,
            bundle_signature=opened.bundle_signature,
            env=dict(opened.spec.env),
            device_env={} if self._loop.mps is None else self._loop.mps.place(attempt),
            device=device.kind,
            lease_bytes=attempt.lease_bytes,
            cap_bytes=attempt.cap_bytes,
            total_bytes=device.total_bytes,
            seed=opened.seed,
            sample_interval_s=self._loop.settings.sample_s,
            ceiling_bytes=self._loop.memory.ceiling(attempt),
            look_for=self._loop.supply.look_for,
        )

    def log_path(self, study_name: str, number: int) -> Path:
        """Return where a trial's output is kept on this host."""
        return output_path(self._loop.settings.state_dir, study_name, number)

    def _check_started(self, attempt: Attempt) -> None:
        if attempt.stage is Stage.RUNNING and attempt.started_at_s is None:
            text = f"its process did not begin the objective within {START_LIMIT_S:.0f} s"
            if attempt.child is not None and attempt.child.importing is not None:
                text += f": it imports {attempt.child.importing.module} (--preload) all the while"
            self.end(attempt, EndKind.CRASHED, text, ask=False)

    def _timed_out(self, attempt: Attempt, limit_s: float) -> None:
        if attempt.stage is Stage.RUNNING:
            self.end(attempt, EndKind.TIMEOUT, f"timeout {limit_s:g} s")

    # ---- ending --------------------------------------------------------------------------------------

    def end(self, attempt: Attempt, kind: EndKind, text: str, *, ask: bool = True) -> None:
        """End an attempt's child: asked first, killed after `stop_ask_s`."""
        if not attempt.end_because(kind, text):
            return
        _log.info("%s is ended: %s", attempt.label, text)
        if attempt.stage is Stage.AWAITING:  # it ends as others do, in a process that is ended at once
            self._hand_over(attempt, self._awaiting.pop(attempt))
        if attempt.child is None:
            return  # not started: it is ended as soon as it is, by the check in `_started`
        child = attempt.child
        now_s = time.monotonic()
        if ask or attempt.mps:  # a client of MPS that is killed in the middle of its work may harm the others
            child.ask_stop()
            self._loop.timers.at(now_s + self._loop.settings.stop_ask_s, child.kill)
        else:
            child.kill()

    def drop(self, attempt: Attempt, reason: str) -> None:
        """Let go of an attempt that is not ours any more: its child is killed and nothing is told."""
        if attempt.dropped is not None or attempt.stage in (Stage.TOLD, Stage.CLOSED):
            return
        _log.warning("%s is dropped: %s", attempt.label, reason)
        attempt.dropped = reason
        if attempt.stage is Stage.AWAITING:
            del self._awaiting[attempt]
            self._ended(attempt)
            self._on_told(attempt, f"dropped: {reason}", None)
        elif attempt.child is not None and attempt.stage is Stage.RUNNING:
            if attempt.mps:
                attempt.child.ask_stop()
                self._loop.timers.at(time.monotonic() + self._loop.settings.stop_ask_s, attempt.child.kill)
            else:
                attempt.child.kill()

    def label_of(self, child: Child) -> str:
        """Return the trial that a child runs, in words."""
        attempt = self._attempts.get(child)
        return attempt.label if attempt is not None else "a spare"

    # ---- events of children --------------------------------------------------------------------------

    def on_event(self, child: Child, event: Event) -> None:
        """Take one event of a child, as `Child` describes them."""
        attempt = self._attempts.get(child)
        kind, data = event.kind, event.data
        if kind is EventKind.GONE:
            self._gone(child, attempt)
        elif attempt is None:
            return  # a spare: it keeps its own readiness
        elif kind is EventKind.STARTED:
            self._started(attempt, data)
        elif kind is EventKind.CALL:
            self._call(attempt, data)
        elif kind is EventKind.SAMPLE:
            attempt.sample = MemorySample.from_json(data)
            self._loop.memory.on_sample(attempt)
            if self._loop.mps is not None:
                self._loop.mps.on_sample(attempt)
            self._note_gap(attempt)
        elif kind is EventKind.RECAPPED:
            self._loop.memory.moves.on_recapped(attempt, data, time.monotonic())
        elif kind is EventKind.GROW:
            self._loop.memory.moves.on_asked(attempt, int(data["held_bytes"]), time.monotonic())
        elif kind is EventKind.STEP:
            self._stepped(attempt, int(data.get("steps", 0)))
        elif kind is EventKind.MISBEHAVED:
            attempt.end_because(EndKind.CRASHED, str(data.get("text", "")))
        elif kind is EventKind.HINT:
            attempt.hints.append(str(data.get("text", ""))[:500])
        elif kind is EventKind.OUTCOME:
            self._loop.supply.learn(attempt.ticket.submission_id, child)
            self._returned(attempt, Outcome.from_json(data))
        elif kind is EventKind.EXITED:
            attempt.exit_code, attempt.signal = data.get("exit_code"), data.get("signal")
            attempt.max_rss_bytes = data.get("max_rss_bytes")

    def _note_gap(self, attempt: Attempt) -> None:
        if attempt.gaps is None:
            own = attempt.spec.env if attempt.spec is not None else {}
            attempt.gaps = GapWatch(allocator_options(own, self._loop.device.child_env()))
        hint = attempt.gaps.note(attempt.sample, time.monotonic())
        if hint:
            attempt.hints.append(hint)
            _log.info("%s: %s", attempt.label, hint)

    def _started(self, attempt: Attempt, data: Mapping[str, Any]) -> None:
        self._loop.ledger.confirm_started(attempt.lease_id)
        attempt.started_at_s = time.monotonic()
        self._loop.spares.begun()
        attempt.cap_bytes, attempt.cap_source = data.get("cap_bytes"), str(data.get("cap_source", ""))
        limit_s = attempt.spec.trial_timeout_s if attempt.spec is not None else None
        if limit_s is not None:
            self._loop.timers.at(attempt.started_at_s + limit_s, lambda: self._timed_out(attempt, limit_s))
        if attempt.ending is not None and attempt.child is not None:
            attempt.child.ask_stop()

    def _call(self, attempt: Attempt, data: Mapping[str, Any]) -> None:
        """Answer a call of the proxy trial in the storage lane; one at a time, for a child waits for its answer."""
        if data["name"] == "report" and not attempt.steps:
            attempt.reports += 1
            self._loop.ledger.progressed(attempt.lease_id, attempt.reports, time.monotonic())
        server, child = attempt.server, attempt.child
        assert server is not None and child is not None
        name, args, call_id = str(data["name"]), dict(data.get("args") or {}), data["id"]

        def answer(value: Any, error: BaseException | None) -> None:
            if isinstance(error, UpdateFinishedTrialError):
                self.drop(attempt, "the trial was ended from outside")
                return
            if error is not None:
                child.reply(call_id, error=describe_error(error))
            else:
                child.reply(call_id, value=value)
            if name == "report" and error is None:
                first, attempt.reported, attempt.been_around = not attempt.been_around, True, True
                if attempt.exclusive:
                    self._loop.sampler.read_soon()
                elif first:
                    self._loop.wake()  # from now on it can give back what it does not need, if its peak is known

        if name == "stop_study":
            reason = f"trial {attempt.ticket.number} called study.stop()"
            self._loop.storage_lane.submit(
                lambda: self._loop.desk.request_stop(attempt.ticket.submission_id, reason), answer
            )
        else:
            self._loop.storage_lane.submit(lambda: self._loop.desk.call(server, name, args), answer)

    def _stepped(self, attempt: Attempt, steps: int) -> None:
        attempt.steps = steps
        self._loop.ledger.progressed(attempt.lease_id, steps, time.monotonic())
        if steps >= 20 and not attempt.reported:
            attempt.reported = True
            self._loop.sampler.read_soon()

    def _returned(self, attempt: Attempt, outcome: Outcome) -> None:
        """The objective has ended: its process only cleans up, and another trial may compute in its place."""
        attempt.outcome = outcome
        if outcome.sample:
            attempt.sample = MemorySample.from_json(outcome.sample)
        attempt.outcome_at_s = time.monotonic()
        attempt.scene = self._loop.memory.scene(attempt, outcome)
        ledger = self._loop.ledger
        closed = ledger.offer(attempt.outcome_at_s).closed
        ledger.returned(attempt.lease_id)
        if closed and not ledger.offer(attempt.outcome_at_s).closed:
            self._loop.wake()

    # ---- settling ------------------------------------------------------------------------------------

    def _gone(self, child: Child, attempt: Attempt | None) -> None:
        """The child and everything below it are gone."""
        child.close()
        self.children.discard(child)
        self._loop.spares.gone(child)
        if attempt is None:
            return
        del self._attempts[child]
        self._ended(attempt)
        loop = self._loop
        if attempt.dropped is not None:
            self._on_told(attempt, f"dropped: {attempt.dropped}", None)
            return
        attempt.last_words = child.log_tail()
        if attempt.signal == signal.SIGKILL and attempt.kills_before is not None:
            attempt.kernel_killed = count_kills().since(attempt.kills_before)
        if loop.mps is None or not loop.mps.holds(attempt):
            self.settle(attempt)

    def _ended(self, attempt: Attempt) -> None:
        """Nothing of an attempt is left: its memory is on its way back."""
        attempt.stage = Stage.ENDED
        attempt.ended_at_s = time.monotonic()
        self._loop.keepers_changed()
        self._loop.ledger.ending(attempt.lease_id, attempt.ended_at_s)
        self._loop.sampler.read_soon()

    def settle(self, attempt: Attempt) -> None:
        """Decide how an attempt ended, and tell it."""
        loop = self._loop
        conclusion = conclude(attempt, self._place())
        if conclusion.facts.verdict == Verdict.SHRINK:
            loop.memory.moves.blamed(attempt)
        attempt.final_state = conclusion.state
        _log.info("%s ended: %s %s", attempt.label, conclusion.facts.end, conclusion.facts.text[:200].splitlines()[:1])
        loop.storage_lane.submit(
            lambda: loop.desk.tell(attempt.ticket, self._spec(attempt), conclusion),
            lambda state, error: self._on_told(attempt, state, error, conclusion),
        )

    def _spec(self, attempt: Attempt) -> Any:
        assert attempt.spec is not None
        return attempt.spec

    def _place(self) -> Place:
        loop = self._loop
        return Place(
            worker=loop.name,
            host=loop.host,
            device=loop.device.id,
            device_name=loop.device.name,
            device_kind=loop.device.kind,
            device_label=loop.device.label,
            budget_bytes=loop.ledger.budget_bytes,
            grantable_bytes=loop.ledger.grantable_bytes,
            largest_budget_bytes=loop.largest_budget_bytes,
            overhead_bytes=loop.ledger.overhead_bytes if loop.device.kind == "cuda" else None,
            free_bytes=loop.reading.free_bytes if loop.reading is not None else None,
        )

    def _on_told(
        self, attempt: Attempt, state: str | None, error: BaseException | None, conclusion: Conclusion | None = None
    ) -> None:
        if error is not None:
            _log.error("the result of %s could not be told", attempt.label, exc_info=error)
            state = f"dropped: {error}"
        attempt.final_state = state or ""
        if attempt.final_state.startswith("dropped"):
            _log.warning("%s: %s", attempt.label, attempt.final_state)
        elif conclusion is not None:
            self._loop.checkpoints.told(attempt, conclusion.facts)
        attempt.stage = Stage.TOLD
        self._loop.finished_trials += 1
        if self._loop.stop_after_trials is not None and self._loop.finished_trials >= self._loop.stop_after_trials:
            self._loop.request_stop()
        self._loop.chronicle.told(attempt, conclusion)
        self.close_if_done(attempt)

    def close_if_done(self, attempt: Attempt) -> None:
        """Forget an attempt that is told and whose memory is back."""
        if attempt.stage is Stage.TOLD and attempt.released:
            attempt.stage = Stage.CLOSED
            self._loop.attempts.pop(attempt.lease_id, None)
            self._loop.wake()
