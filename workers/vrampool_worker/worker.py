"""The worker's main loop: take -> claim -> start -> watch -> settle. It never blocks on I/O.

Whatever may hang is done elsewhere: Redis in the queue lane and in the beat, the database in the storage lane, the
driver in the sampler. They post back, and only here anything is decided, by the ledger.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from vrampool.errors import MessageError
from vrampool.messages import EndKind
from vrampool.queueing import Offer, TransientRedisError
from vrampool.settings import Settings
from vrampool.units import parse_budget
from vrampool_worker import asking
from vrampool_worker.asking import Asked
from vrampool_worker.attempts import Attempt, Stage
from vrampool_worker.audit import Audit
from vrampool_worker.beat import Heard, Held
from vrampool_worker.checkpoint_care import CheckpointCare
from vrampool_worker.children.child import Child
from vrampool_worker.children.spares import SpareShelf
from vrampool_worker.children.supply import Supply
from vrampool_worker.desk import NotOpened, Opened, StudyDesk
from vrampool_worker.devices import Blind, Device, DeviceReading, Sampler
from vrampool_worker.devices.cgroups import host_bytes
from vrampool_worker.lanes import Inbox, Lane, Timers, turn
from vrampool_worker.ledger import Ledger
from vrampool_worker.memory_watch import MemoryWatch
from vrampool_worker.mps_watch import MpsWatch
from vrampool_worker.outlook import Outlook
from vrampool_worker.queue_port import QueuePort
from vrampool_worker.records import Chronicle
from vrampool_worker.release_watch import ReleaseWatch
from vrampool_worker.running import Runner
from vrampool_worker.storage_watch import StorageWatch

_log = logging.getLogger("vrampool.worker")

#: Events wake the loop at once; this look is for events that got lost.
LOOK_S = 2.0
#: Pause between two comparisons of running trials with the storage (cancelled, failed from outside).
AUDIT_S = 5.0


class WorkerLoop:
    """Runs trials on one device until it is asked to stop.

    Args:
        settings: The worker's settings.
        name: The worker's name.
        device: Its device; this process holds the device's lock.
        ledger: The device's ledger.
        desk: Optuna, for the storage lane.
        port: The job queue, for the queue lane.
        tell_beat: Hands what is held now to the beat.
        forget_job: Has the beat renew a job no more; blocks for a beat at most.
        supply: Starts children; called from this loop's thread only.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        name: str,
        device: Device,
        ledger: Ledger,
        desk: StudyDesk,
        port: QueuePort,
        inbox: Inbox,
        tell_beat: Callable[[Held], None],
        forget_job: Callable[[str], None],
        supply: Supply,
    ) -> None:
        self.settings = settings
        self.name = name
        self.host = socket.gethostname()
        self.device = device
        self.ledger = ledger
        self.desk = desk
        self.port = port
        self.inbox = inbox
        self.timers = Timers()
        self.storage_lane = Lane("vrampool-storage", inbox)
        self.queue_lane = Lane("vrampool-queue", inbox)
        self.attempts: dict[str, Attempt] = {}  #: by lease id, until closed
        self._largest_heard_bytes = 0
        self.refused: dict[str, str] = {}
        self.device_limits: dict[str, int | None] = {}  #: by submission: its trials at once on a device, as it says
        self.reading: DeviceReading | None = None
        self.paused: str | None = None  #: why, when a command paused it
        self.exit_code = 0
        self.finished_trials = 0
        self.stop_after_trials: int | None = None
        self.stop_when_empty = False
        self._tell_beat = tell_beat
        self.forget_job = forget_job
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox, selectors.EVENT_READ, lambda _mask: inbox.run())
        memory, needed = parse_budget(settings.spare_memory, host_bytes()), Outlook(self).needed
        self.supply = supply
        self.spares = SpareShelf(supply, self._watch_child, settings.spares, memory_bytes=memory, needed=needed)
        self.runner = Runner(self)
        self.memory = MemoryWatch(self)
        self.audit = Audit(self)
        self.chronicle = Chronicle(self)
        self.releases = ReleaseWatch(self)
        self.checkpoints = CheckpointCare(self)
        self.storage_watch = StorageWatch(self)
        self.sampler = Sampler(
            device,
            settings.sample_s,
            settings.nvml_timeout_s,
            lambda reading, measured: inbox.post(lambda: self._on_reading(reading, measured)),
            lambda blind: inbox.post(lambda: self._on_blind(blind)),
            limits=lambda: self._keepers,
            # On a CPU the readings hold a trial to its lease; between two of them it may grow beyond.
            busy_interval_s=min(settings.sample_s, 0.1) if device.kind == "cpu" else None,
        )
        self.mps: MpsWatch | None = None  #: on a card whose trials run side by side through MPS
        self.mps_lacks = ""  #: why there is none, though it was asked for
        self.connected = False  #: the storage was opened
        self._taking = False
        self._wakes = 1
        self._tried_wakes = 0
        self._take_pause_s = 0.0
        self._stop_requests = 0
        self._finished = False
        self._keepers: dict[int, int | None] = {}

    # ---- life ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until stopped and everything is settled."""
        self.storage_lane.submit(self.desk.connect, self._on_connected)
        self.sampler.start()
        if self.mps is not None:
            self.mps.start()
        self.supply.register(self._selector)
        for look in (self.wake, self.releases.look, self.chronicle.calibration.look):
            self.every(LOOK_S, look)
        self.every(AUDIT_S, self.audit.look)
        self.every(self.settings.sample_s, lambda: self.chronicle.sample(time.time()))
        self.inbox.post(self.wake)  # the first turn begins at once: with a child for the first trial
        while not self._finished:
            now_s = time.monotonic()
            turn(self._selector, self.timers.wait_s(now_s, 1.0))
            now_s = time.monotonic()
            self.timers.run(now_s)
            self.runner.start_awaiting(now_s)
            if not self._stop_requests:
                self.spares.fill(now_s)
                self._admit(now_s)
            self._publish()
            self._finish_if_done()
        self._close()

    def _close(self) -> None:
        self.sampler.stop()
        if self.mps is not None:
            self.mps.close()
        self.desk.closing.set()
        self.storage_lane.stop(5.0)
        self.queue_lane.stop(5.0)
        self._selector.close()

    def every(self, pause_s: float, call: Callable[[], None]) -> None:
        """Call back in this loop again and again."""

        def again() -> None:
            call()
            self.timers.at(time.monotonic() + pause_s, again)

        self.timers.at(time.monotonic() + pause_s, again)

    def _on_connected(self, _result: object, error: BaseException | None) -> None:
        if error is not None:
            _log.error("the storage cannot be used: %s", error)
            self.exit_code = getattr(error, "exit_code", 1)
            self.request_stop()
            return
        self.connected = True
        self.checkpoints.sweep()

    def stop_jobs(self, job_id: str | None) -> None:
        """End the trial of one job, or all; RQ's commands ask for it."""
        for attempt in list(self.attempts.values()):
            if job_id is None or attempt.job_id == job_id:
                self.runner.end(attempt, EndKind.CANCELLED, "stopped with a command of RQ")

    def request_stop(self) -> None:
        """Drain: take nothing more, let trials finish for the grace period. A second call hurries."""
        self._stop_requests += 1
        if self._stop_requests == 1:
            _log.info("draining: %s trials run, they may finish for %.0f s", len(self.attempts), self.settings.grace_s)
            self.ledger.drain("the worker shuts down")
            self.timers.at(time.monotonic() + self.settings.grace_s, self._preempt_all)
        else:
            self._preempt_all()

    def _preempt_all(self) -> None:
        for attempt in list(self.attempts.values()):
            self.runner.end(attempt, EndKind.PREEMPTED, f"handed back: worker {self.name} shuts down")

    def _finish_if_done(self) -> None:
        blind = self.ledger.state[0] == "blind"  # then nobody will see memory come back: it is not waited for
        idle = not self._taking and all(blind and item.stage is Stage.TOLD for item in self.attempts.values())
        if self.stop_when_empty and idle and self.connected and self._tried_wakes and not self._stop_requests:
            self.request_stop()
        if self._stop_requests and idle:
            self.spares.close()
            self._finished = not self.runner.children and self.chronicle.idle

    def watch(self, fd: int, call: Callable[[], None]) -> None:
        """Call back in this loop whenever the descriptor is readable."""
        self._selector.register(fd, selectors.EVENT_READ, lambda _mask: call())

    # ---- taking --------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be there to take: look."""
        self._wakes += 1

    def _admit(self, now_s: float) -> None:
        """Ask the queue for a trial that fits what the ledger can grant; one question at a time."""
        if not self.connected or self._taking or self._wakes == self._tried_wakes or now_s < self._take_pause_s:
            return
        offer = self.ledger.offer(now_s)
        if offer.free_bytes <= 0 and not offer.idle and (offer.closed or not self.memory.moves.shrinkable_bytes()):
            self._tried_wakes = self._wakes  # the ledger's next change wakes again
            return
        self._taking = True
        tried = self._wakes
        question = asking.question(self, offer, now_s)
        self.queue_lane.submit(
            lambda: self.port.ask(question), lambda asked, error: self._on_asked(question, tried, asked, error)
        )

    def _on_asked(self, question: Offer, tried: int, asked: Asked | None, error: BaseException | None) -> None:
        self._taking = False
        if error is not None:
            if isinstance(error, MessageError):
                _log.error("a job was refused: %s", error)
                self.refused.update(self.port.refused)
                return
            if not isinstance(error, TransientRedisError):
                _log.error("taking failed", exc_info=error)
            self._take_pause_s = time.monotonic() + 0.5
            return
        assert asked is not None
        news = asking.hear(self, asked)
        if asked.found is None:
            self.memory.moves.make_room(asked, question.free_bytes)
            if not news:  # else the next question is another one
                self._tried_wakes = tried
            return
        taken, ticket = asked.found
        now_s, label = time.monotonic(), f"{ticket.study_name}/{ticket.number}"
        decision = self.ledger.grant(question.lease_id, taken.vram_bytes, label=label, now_s=now_s)
        if not decision.granted:
            _log.info("%s goes back: %s", label, decision.reason)
            self._tried_wakes = tried
            self.in_queue(lambda: self.port.put_back(taken.job_id, question.lease_id), "put a job back")
            return
        attempt = Attempt(
            job_id=taken.job_id,
            lease_id=question.lease_id,
            ticket=ticket,
            taken_at_s=now_s,
            wait_s=round(taken.wait_s, 4),
            lease_bytes=decision.lease_bytes,
            lease_at_end_bytes=decision.lease_bytes,
            exclusive=taken.vram_bytes is None,
            used_before_bytes=self.reading.used_bytes if self.reading is not None else None,
        )
        self.attempts[attempt.lease_id] = attempt
        self.storage_watch.open(attempt, self._on_opened)

    def _on_opened(self, attempt: Attempt, opened: Opened | NotOpened | None, error: BaseException | None) -> None:
        if error is not None:
            _log.error("%s could not be opened", attempt.label, exc_info=error)
            opened = NotOpened(f"opening failed: {error}", refuse=False)
        if isinstance(opened, NotOpened):
            if opened.refuse:
                self.refused[attempt.ticket.submission_id] = opened.reason
                _log.warning("%s is not for this worker: %s", attempt.label, opened.reason)
                self.in_queue(lambda: self.port.put_back(attempt.job_id, attempt.lease_id, refused=True), "put back")
            else:
                _log.info("%s is not run: %s", attempt.label, opened.reason)
                self.in_queue(lambda: self.port.discard(attempt.job_id, attempt.lease_id), "discard a job")
            self.ledger.cancel(attempt.lease_id)
            del self.attempts[attempt.lease_id]
            self.wake()
            return
        assert opened is not None
        self.runner.start(attempt, opened)  # first: whatever else is done here would make the trial wait
        self._begin_in_queue(attempt)
        if attempt.ticket.submission_id not in self.device_limits:
            self.device_limits[attempt.ticket.submission_id] = opened.spec.max_trials_per_device
            self.wake()

    def _begin_in_queue(self, attempt: Attempt) -> None:
        begin = lambda: self.port.begin(attempt.job_id)  # noqa: E731
        self.queue_lane.submit(begin, lambda result, error: self._on_begun(attempt, result, error))

    def _on_begun(self, attempt: Attempt, execution_id: str | None, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("RQ's books could not be opened for %s: %s", attempt.label, error)
            if isinstance(error, TransientRedisError) and attempt.stage is not Stage.CLOSED:
                self.timers.at(time.monotonic() + 1.0, lambda: self._begin_in_queue(attempt))
            return
        if execution_id is None:
            self.runner.drop(attempt, "another worker holds its job")
            return
        attempt.execution_id = execution_id
        if attempt.stage in (Stage.TOLD, Stage.CLOSED):
            self.chronicle.finish_in_queue(attempt)

    def in_queue(self, work: Callable[[], Any], what: str) -> None:
        def done(_result: object, error: BaseException | None) -> None:
            if error is not None:
                _log.warning("could not %s: %s", what, error)

        self.queue_lane.submit(work, done)

    # ---- what comes back -----------------------------------------------------------------------------

    def on_heard(self, heard: Heard) -> None:
        """A beat was made."""
        if heard.largest_budget_bytes is not None:
            self._largest_heard_bytes = heard.largest_budget_bytes
        for attempt in list(self.attempts.values()):
            if attempt.job_id in heard.lost:
                self.runner.drop(attempt, "another worker holds its job: this one was silent for too long")
        suspended = "suspended with `rq suspend`" if heard.suspended else None
        self.ledger.pause(suspended or self.storage_watch.reason or self.paused)
        if heard.was_away:
            self.audit.look()
            self.wake()

    def _on_reading(self, reading: DeviceReading, measured: Mapping[int, int | None]) -> None:
        self.reading = reading
        now_s = time.monotonic()
        by_lease = {
            attempt.lease_id: self.memory.fill_in(attempt, measured[attempt.child.keeper_pid])
            for attempt in self.attempts.values()
            if attempt.child is not None and attempt.child.keeper_pid in measured
        }
        before = self.ledger.offer(now_s)
        self.ledger.observe(reading, by_lease, now_s)
        self.releases.on_reading(reading)
        self.memory.on_reading(reading, by_lease, now_s)
        after = self.ledger.offer(now_s)
        if after.free_bytes > before.free_bytes or after.idle != before.idle:
            self.wake()

    def _on_blind(self, blind: Blind) -> None:
        _log.error("the device cannot be read: %s", blind.reason)
        self.ledger.blind(blind.reason, time.monotonic())
        if blind.lost:
            for attempt in list(self.attempts.values()):
                self.runner.end(attempt, EndKind.DEVICE_LOST, blind.reason)
            self.exit_code = 3
            self.request_stop()

    # ---- watching ------------------------------------------------------------------------------------

    def _watch_child(self, child: Child) -> None:
        self.runner.children.add(child)
        child.register(self._selector, self.runner.on_event, self.timers.at)

    def keepers_changed(self) -> None:
        """Tell the sampler which trees to measure, and how exactly."""
        self._keepers = {
            attempt.child.keeper_pid: attempt.lease_at_end_bytes
            for attempt in self.attempts.values()
            if attempt.child is not None and attempt.stage in (Stage.RUNNING,)
        }
        self.sampler.read_soon()

    def _publish(self) -> None:
        if (held := self.chronicle.held()) is not None:
            self._tell_beat(held)

    @property
    def largest_budget_bytes(self) -> int:
        """The most that any device the pool saw in 24 h can give."""
        return max(self._largest_heard_bytes, self.ledger.grantable_bytes)

    @property
    def draining(self) -> bool:
        return self._stop_requests > 0
