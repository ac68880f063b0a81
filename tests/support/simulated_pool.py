"""Workers on paper cards that ask a real Valkey for trials: the real ledger and the real scripts, in simulated time.

Trials come and end as a stream says. Redis's clock cannot be moved, so what it wrote down is moved instead: when a
minute passes, every time that waiting jobs carry becomes a minute older.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
import random
import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from support.paper_card import PaperCard
from support.valkey import SIGNER, ticket

from vrampool.queueing import JobQueue, Registry, RunningTrial, WorkerRecord, ask, put_back
from vrampool.queueing.names import Names
from vrampool.queueing.taking import WINDOW
from vrampool.units import GIB
from vrampool_worker import asking
from vrampool_worker.attempts import Stage

_AGE = """
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  for _, field in ipairs({'queued_at_ms', 'passed_ms'}) do
    if redis.call('HEXISTS', ARGV[2] .. id, field) == 1 then
      redis.call('HINCRBY', ARGV[2] .. id, field, ARGV[1])
    end
  end
end
"""


@dataclasses.dataclass
class Trial:
    """One trial of a stream, and what became of it. Simulated seconds."""

    number: int
    comes_s: float
    request_bytes: int | None  #: None: exclusive, until a fifth of its run is over
    run_s: float
    peak_bytes: int = GIB  #: of an exclusive one, known at its first report
    passed_s: float | None = None  #: first passed over by a device that could hold it
    marked_s: float | None = None
    started_s: float | None = None
    ends_s: float = math.inf
    worker: str = ""
    promised_s: float = math.inf  #: it could start by then if the device that is kept free took nothing from then on
    cancelled: bool = False


@dataclasses.dataclass
class SimWorker:
    """A worker's main loop, as far as taking goes."""

    name: str
    card: PaperCard
    loop: Any
    state: str = "ready"
    running: dict[int, Trial] = dataclasses.field(default_factory=dict)
    used_byte_s: float = 0.0


class SimulatedPool:
    """A pool in simulated time.

    Args:
        connection: A real server, empty.
        pool: The pool's name.
        cards: The budget of each card in bytes.
        age_limit_s: Simulated seconds.
        seed: Of the order in which workers ask.
    """

    def __init__(self, connection: Any, pool: str, cards: Sequence[int], *, age_limit_s: float, seed: int = 0) -> None:
        self.connection = connection
        self.pool = pool
        self.names = Names(pool)
        self.queue = JobQueue(connection, pool, SIGNER)
        self.registry = Registry(connection, pool)
        self.random = random.Random(seed)
        self.age_limit_s = age_limit_s
        self.now_s = 0.0
        self._real_s = time.monotonic()
        self.trials: dict[int, Trial] = {}
        self.waiting: dict[int, Trial] = {}
        self.workers = [self._worker(index, budget) for index, budget in enumerate(cards)]
        self._events: list[tuple[float, int, str, Any]] = []
        self._serial = itertools.count()
        for worker in self.workers:
            self._beat(worker)

    def _worker(self, index: int, budget_bytes: int) -> SimWorker:
        card = PaperCard(budget_bytes, label=f"GPU {index}")
        card.look()
        loop = SimpleNamespace(
            name=f"w{index}",
            ledger=card.ledger,
            settings=SimpleNamespace(lease_ttl_s=86_400, age_limit_s=self.age_limit_s),
            device=SimpleNamespace(id=f"GPU-{index}", kind="cuda", label=f"GPU {index}"),
            device_limits={"sub1": None},
            refused={},
            attempts={},
        )
        return SimWorker(loop.name, card, loop)

    # ---- time ----------------------------------------------------------------------------------------

    def run(self, trials: Iterable[Trial], events: Iterable[tuple[float, str, Any]] = ()) -> None:
        """Let all these trials come, and everything else happen, until the last one has ended."""
        for trial in trials:
            self.trials[trial.number] = trial
            self._at(trial.comes_s, "come", trial)
        for at_s, what, who in events:
            self._at(at_s, what, who)
        while self._events:
            at_s, _, what, who = heapq.heappop(self._events)
            self._advance(at_s)
            getattr(self, f"_{what}")(who)
            self._look()

    def _at(self, at_s: float, what: str, who: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._serial), what, who))

    def _advance(self, to_s: float) -> None:
        passed_s = to_s - self.now_s
        for worker in self.workers:
            worker.used_byte_s += passed_s * sum(item.lease_bytes for item in worker.card.ledger._leases.values())
            worker.card.now_s += passed_s
        self.now_s = to_s
        real_s = time.monotonic()
        older_s = passed_s - (real_s - self._real_s)  # Redis's own clock went on meanwhile
        self._real_s = real_s
        self.connection.eval(_AGE, 1, self.names.waiting, -int(older_s * 1000), self.names.job_prefix)

    # ---- what happens --------------------------------------------------------------------------------

    def _come(self, trial: Trial) -> None:
        self.waiting[trial.number] = trial
        self.queue.enqueue([ticket(self.pool, trial.number, trial.request_bytes)])

    def _end(self, trial: Trial) -> None:
        worker = self.worker(trial.worker)
        if worker.running.pop(trial.number, None) is None:
            return
        worker.card.end(str(trial.number))
        assert worker.card.settle(str(trial.number)) is not None
        self.connection.delete(self.names.live(f"sub1-{trial.number}"))
        self._beat(worker)

    def _report(self, trial: Trial) -> None:
        worker = self.worker(trial.worker)
        if trial.number in worker.running:
            worker.card.use(str(trial.number), trial.peak_bytes)
            worker.card.look()
            assert worker.card.ledger.report_first(str(trial.number), trial.peak_bytes, worker.card.now_s).granted
            self._beat(worker)

    def _pause(self, name: str) -> None:
        worker = self.worker(name)
        worker.state = "paused"
        worker.card.ledger.pause("by hand")
        self._beat(worker)

    def _resume(self, name: str) -> None:
        worker = self.worker(name)
        worker.state = "ready"
        worker.card.ledger.pause(None)
        self._beat(worker)

    def _stranger(self, name_and_bytes: tuple[str, int]) -> None:
        name, amount_bytes = name_and_bytes
        card = self.worker(name).card
        room_bytes = card.total_bytes - sum(card.holds.values())
        card.strangers_bytes = max(0, min(amount_bytes, room_bytes))
        card.pass_time(70, every_s=10)
        self._beat(self.worker(name))

    def _cancel(self, number: int) -> None:
        trial = self.waiting.pop(number, None)
        if trial is not None:
            trial.cancelled = True
            self.queue.cancel([f"sub1-{number}"])

    # ---- taking --------------------------------------------------------------------------------------

    def worker(self, name: str) -> SimWorker:
        return next(worker for worker in self.workers if worker.name == name)

    def _look(self) -> None:
        """Every worker looks: an event wakes some of them, and the others look every two seconds anyway.

        Again while something was taken: what moves up in the line may fit whoever has looked before.
        """
        before = -1
        while self.waiting and len(self.waiting) != before:
            before = len(self.waiting)
            for worker in self.random.sample(self.workers, len(self.workers)):
                self._take_all(worker)

    def _take_all(self, worker: SimWorker) -> None:
        """What `WorkerLoop._admit` and `_on_asked` do."""
        ledger = worker.card.ledger
        while True:
            now_s = worker.card.now_s
            offer = ledger.offer(now_s)
            if offer.free_bytes <= 0 and not offer.idle:
                return
            question = asking.question(worker.loop, offer, now_s)
            answer = ask(self.connection, self.pool, question)
            taken = answer.taken
            self._note_passing(worker, self.trials[taken.number] if taken else None)
            self._note_earmarks(taken.number if taken else None)
            news = asking.hear(worker.loop, asking.Asked(None, answer.earmark))
            if taken is None:
                if not news:
                    return
                continue
            trial = self.waiting[taken.number]
            decision = ledger.grant(str(trial.number), taken.vram_bytes, label=f"digits/{trial.number}", now_s=now_s)
            if not decision.granted:
                put_back(self.connection, self.pool, taken.job_id, question.lease_id)
                return
            self._start(worker, trial, decision.lease_bytes)

    def _start(self, worker: SimWorker, trial: Trial, lease_bytes: int) -> None:
        del self.waiting[trial.number]
        ledger, name = worker.card.ledger, str(trial.number)
        ledger.confirm_started(name)
        worker.card.use(name, 0 if trial.request_bytes is None else lease_bytes)
        worker.card.look()
        trial.started_s, trial.worker = self.now_s, worker.name
        trial.ends_s = self.now_s + trial.run_s
        worker.running[trial.number] = trial
        self._at(trial.ends_s, "end", trial)
        if trial.request_bytes is None:
            self._at(self.now_s + trial.run_s / 5, "report", trial)
        self._beat(worker)

    def _note_passing(self, worker: SimWorker, taken: Trial | None) -> None:
        """All that a device could hold and has not taken is passed over, also what stands behind."""
        if taken is not None and taken.marked_s is not None and taken.worker == worker.name:
            return  # what the device was kept free for is taken without a look at the others
        for trial in list(self.waiting.values())[:WINDOW]:
            if trial.passed_s is None and trial is not taken and self.can_hold(worker, trial):
                trial.passed_s = self.now_s

    def can_hold(self, worker: SimWorker, trial: Trial) -> bool:
        most_bytes = worker.card.ledger.most_bytes(worker.card.now_s)
        return worker.state == "ready" and (trial.request_bytes or 1) <= most_bytes

    def _beat(self, worker: SimWorker) -> None:
        ledger, now_s = worker.card.ledger, worker.card.now_s
        leases = {lease.lease_id: lease.lease_bytes for lease in ledger.snapshot(now_s).leases}
        record = WorkerRecord(
            name=worker.name,
            host="hub",
            pid=1,
            device_id=worker.loop.device.id,
            device_name=worker.name,
            device_kind="cuda",
            total_bytes=ledger.total_bytes,
            budget_bytes=ledger.budget_bytes,
            free_bytes=ledger.offer(now_s).free_bytes,
            slots=ledger.max_trials,
            state=worker.state,
            running=tuple(RunningTrial("digits", int(name), size, None, 0.0) for name, size in leases.items()),
            most_bytes=ledger.most_bytes(now_s),
        )
        self.registry.beat(record, 86_400)
        attempt = SimpleNamespace(stage=Stage.RUNNING, ticket=SimpleNamespace(submission_id="sub1"))
        worker.loop.attempts = dict.fromkeys(leases, attempt)

    # ---- what must hold ------------------------------------------------------------------------------

    def _note_earmarks(self, taken: int | None) -> None:
        """See where earmarks are now, and what a new one promises: the start if its device took nothing any more."""
        found = {
            name.decode(): int(value.decode().rpartition("-")[2])
            for name, value in self.connection.hgetall(self.names.earmarks).items()
        }
        assert len(set(found.values())) == len(found), f"two devices are kept free for one trial: {found}"
        for name, number in found.items():
            trial, worker = self.trials[number], self.worker(name)
            if trial.marked_s is None or trial.worker != name:
                assert self.can_hold(worker, trial), f"{name} is kept free for what it cannot hold"
                trial.marked_s, trial.worker = self.now_s, name
                trial.promised_s = self._start_if_nothing_came(worker, trial)
        for trial in self.waiting.values():
            if trial.marked_s is not None and trial.number not in (taken, *found.values()):
                trial.marked_s, trial.worker, trial.promised_s = None, "", math.inf

    def _start_if_nothing_came(self, worker: SimWorker, trial: Trial) -> float:
        left = {item.number: item.lease_bytes for item in _by_number(worker)}
        limit_bytes = worker.card.ledger.most_bytes(worker.card.now_s) - (trial.request_bytes or 0)
        for other in sorted(worker.running.values(), key=lambda item: item.ends_s):
            if trial.request_bytes is not None and sum(left.values()) <= limit_bytes:
                return self.now_s
            del left[other.number]
            if sum(left.values()) <= limit_bytes if trial.request_bytes is not None else not left:
                return other.ends_s
        return self.now_s

    def longest_wait_allowed(self, trial: Trial) -> float:
        """Return the bound of docs/waiting.md on the wait since the trial was first passed over."""
        assert trial.passed_s is not None
        late_s = trial.passed_s + self.age_limit_s
        ahead = sum(
            other.passed_s is not None
            and other.passed_s <= trial.passed_s
            and (other.started_s or 0.0) >= late_s
            and other is not trial
            for other in self.trials.values()
        )
        devices = sum(self.can_hold(worker, trial) for worker in self.workers)
        return self.age_limit_s + (1 + ahead / devices) * max(item.run_s for item in self.trials.values())


@dataclasses.dataclass
class _Leased:
    number: int
    lease_bytes: int


def _by_number(worker: SimWorker) -> list[_Leased]:
    shown = worker.card.ledger.snapshot(worker.card.now_s).leases
    return [_Leased(int(lease.lease_id), lease.lease_bytes) for lease in shown]


def stream(
    seed: int, cards: Sequence[int], count: int, *, load: float, exclusive: float = 0.05, mean_run_s: float = 1000.0
) -> list[Trial]:
    """Return trials that come at random, asking in all for `load` times what the cards can hold."""
    rng = random.Random(seed)
    largest = max(cards)
    sizes = [largest // 16, largest // 8, largest // 4, int(largest * 0.6), largest]
    weights = [45, 30, 18, 6, 1]
    mean_bytes = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(weights)
    gap_s = mean_bytes * mean_run_s / (load * sum(cards))
    at_s, trials = 0.0, []
    for number in range(count):
        at_s += rng.expovariate(1 / gap_s)
        alone = rng.random() < exclusive
        size = rng.choices(sizes, weights)[0]
        run_s = mean_run_s * rng.lognormvariate(-0.32, 0.8)
        trials.append(Trial(number, at_s, None if alone else size, run_s, peak_bytes=rng.choice(sizes[:3])))
    return trials
