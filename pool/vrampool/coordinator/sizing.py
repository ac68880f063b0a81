"""How much memory the trials of one submission ask for: what it declares, else what its peaks have taught so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial

from vrampool.coordinator.vram_function import VramFunction
from vrampool.measured import past_peak, planned_params
from vrampool.memory.declared import read_vram
from vrampool.memory.dominance import needs_no_less
from vrampool.memory.learning.fitting import Fitter
from vrampool.memory.peaks import PastPeak, Taught
from vrampool.memory.requests import Request, beside_others, next_request
from vrampool.messages import EndKind, SubmissionSpec
from vrampool.storage import attempt_of, mark_of
from vrampool.units import GIB, format_bytes

if TYPE_CHECKING:
    from vrampool.memory.learning.learned import Learned

#: Workers of a pool come one after another, and the largest device may come last: nothing is too large before that.
SETTLE_S = 10.0


@dataclass(frozen=True)
class Refusal:
    """Why a proposal fits no device, by what was measured."""

    over_gib: float  #: more than 0
    reason: str


class Sizing:
    """Sizes the trials of one submission.

    Args:
        spec: The submission.
        fitter: Learns in the background; None: every trial is taken for as large as the largest so far.
        earlier: Peaks of earlier studies with the same objective.
        others: Submissions of the study that run other code: their trials teach nothing of these.
    """

    def __init__(
        self,
        spec: SubmissionSpec,
        fitter: Fitter | None = None,
        earlier: Sequence[PastPeak] = (),
        others: Collection[str] = (),
    ) -> None:
        self._spec = spec
        self._fitter = fitter
        self._earlier = list(earlier)
        self._others = frozenset(others)
        self._peaks: list[PastPeak] = []  #: of this study
        self._infeasible: list[PastPeak] = []
        self._running: dict[int, PastPeak] = {}
        self._watched: dict[int, tuple[FrozenTrial, Mapping[str, Any]]] = {}  #: of them, with their parameters
        self._wanted: tuple[int, ...] = ()
        self._declared = read_vram(spec.vram)
        self._function = VramFunction(self._declared.function, spec) if self._declared.function is not None else None
        self._kinds: frozenset[str] = frozenset()
        self._own: tuple[PastPeak, ...] = ()  #: see `_own_here`
        self._own_of: tuple[int, frozenset[str]] | None = None
        self._too_large_since_s: float | None = None
        self.largest_bytes = 0  #: budget of the pool's largest device; 0: not known yet
        self.overhead_bytes: int | None = None  #: the largest that a process has on the pool's devices; None: not known

    # ---- what is measured --------------------------------------------------------------------------

    def learn(self, trial: FrozenTrial) -> None:
        """Take in a trial that has ended."""
        self._running.pop(trial.number, None)
        peak, mark = past_peak(trial), mark_of(trial)
        if peak is None or (mark is not None and mark.submission in self._others):
            return
        facts = attempt_of(trial)
        if facts is not None and facts.end == EndKind.INFEASIBLE:
            # What fits no device says nothing of those that do: the next trial would be refused its chance.
            self._infeasible.append(peak)
        else:
            self._peaks.append(peak)

    def watch(self, running: Mapping[int, int], trials: Sequence[FrozenTrial]) -> None:
        """Take in what running trials were seen to hold, by number. They have been through a whole round."""
        if self._declared.exact_bytes is not None:
            return
        seen, self._watched = self._watched, {}
        self._running = {}
        for number, peak_bytes in running.items():
            if number < len(trials):
                trial = trials[number]
                params = seen[number][1] if number in seen and seen[number][0] is trial else planned_params(trial)
                self._watched[number] = trial, params  # reading a plan takes longer than all else here
                self._running[number] = PastPeak(peak_bytes, params=params, overhead_bytes=self.overhead_bytes)

    def devices(self, names: Sequence[str]) -> None:
        """Take in which devices the pool has, by their names: what other kinds showed is not listened to."""
        kinds = {peak.device for peak in self._all()}
        self._kinds = frozenset(kind for kind in kinds if any(kind in name for name in names))

    def refresh(self) -> None:
        """Have the newest peaks learned from, in the background."""
        if self._fitter is None or not self._declared.is_learned:
            return
        peaks = self._of_these_devices()
        state = (len(peaks), len(self._infeasible), *sorted(self._running))
        if state == self._wanted or not peaks:
            return
        self._wanted = state
        self._fitter.want(self._spec.submission_id, self.taught.peaks)

    @property
    def taught(self) -> Taught:
        """What the model learns from: peaks on devices as the pool has them, what fitted none, and what runs."""
        return Taught((*self._own_here(), *self._infeasible, *self._running.values()), self._earlier_here())

    def close(self) -> None:
        """The submission has ended."""
        if self._fitter is not None:
            self._fitter.forget(self._spec.submission_id)
        if self._function is not None:
            self._function.close()

    @property
    def model(self) -> Learned | None:
        """What was learned so far; None: nothing yet."""
        return None if self._fitter is None else self._fitter.latest(self._spec.submission_id)

    def _all(self) -> list[PastPeak]:
        return [*self._earlier, *self._peaks]

    def _of_these_devices(self) -> list[PastPeak]:
        return [*self._earlier_here(), *self._own_here()]

    def _earlier_here(self) -> tuple[PastPeak, ...]:
        return tuple(peak for peak in self._earlier if self._kinds and self._is_here(peak))

    def _own_here(self) -> tuple[PastPeak, ...]:
        # Before a device is known: whatever its own trials ran on; another study's word is not taken for it.
        state = (len(self._peaks), self._kinds)
        if self._own_of != state:  # asked several times for each trial, and a study may have thousands
            self._own = tuple(peak for peak in self._peaks if not self._kinds or self._is_here(peak))
            self._own_of = state
        return self._own

    def _is_here(self, peak: PastPeak) -> bool:
        return not peak.device or peak.device in self._kinds

    # ---- requests ----------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Return whether trials can be sized now: a declared function takes a moment to start.

        Raises:
            InputError: the function cannot be used; says why.
        """
        return self._function is None or self._function.ready()

    def request(self, params: Mapping[str, Any]) -> Request:
        """Return the request of a trial with these planned parameters.

        Raises:
            InputError: the declared function failed; says how.
        """
        if self._function is not None:
            asked_bytes = self._function.ask(params)
            return Request(
                asked_bytes, f"{format_bytes(asked_bytes)} by the submission's own function of the parameters"
            )
        size = next_request(
            self._spec.vram,
            [] if self._declared.exact_bytes is not None else [*self._of_these_devices(), *self._running.values()],
            self._fixed_bytes(),
            params=params,
            model=self.model,
            largest_bytes=self.largest_bytes or None,
        )
        if self._declared.exact_bytes is None and size.request_bytes and self._is_all_of_a_device(size.request_bytes):
            words = f"{size.reason}; that is all a device has, so it runs alone on one"
            return Request(None, words, size.predicted_bytes)
        return size

    def smallest(self) -> int | None:
        """Return the smallest request that the next trial may have; None when it will be exclusive."""
        if self._function is not None:
            return self._function.smallest_bytes
        model = self.model
        if model is None or not self._declared.is_learned:
            return self.request({}).request_bytes
        # Its prediction is at least half of it: that is what the widest margin adds.
        found = beside_others(model.smallest_bytes, model.smallest_bytes // 2, self.largest_bytes or None)
        if self._declared.least_bytes is not None:
            found = max(found, self._declared.least_bytes)
        if self._declared.most_bytes is not None:
            found = min(found, self._declared.most_bytes)
        # As in `request`: what takes a whole device is waited for until one is idle, not until it has more than it has.
        return None if self._declared.exact_bytes is None and self._is_all_of_a_device(found) else found

    def _is_all_of_a_device(self, request_bytes: int) -> bool:
        return 0 < self.largest_bytes <= request_bytes

    def _fixed_bytes(self) -> int | None:
        # Without a model the margin is taken of all, as ever: it has to cover what the parameters may do.
        return self.overhead_bytes if self.model is not None else None

    # ---- refusals ----------------------------------------------------------------------------------

    def refusal(self, params: Mapping[str, Any]) -> Refusal | None:
        """Return why a proposal fits no device; None where nothing measured says so.

        A rough prediction refuses nothing: it would be taught to the sampler as a fact. It needs a trial that was no
        larger and did not fit, or a prediction that is sure, within what was measured.
        """
        if not self.largest_bytes or not self._declared.is_learned or not params:
            return None
        model = self.model
        directions = {} if model is None else model.directions
        for peak in self._infeasible:
            if peak.params and needs_no_less(params, peak.params, directions):
                over = max(peak.at_least_bytes - self.largest_bytes, 1) / GIB
                return Refusal(over, f"a trial that was no larger needed more than {format_bytes(self.largest_bytes)}")
        if model is None:
            return None
        prediction = model.predict(params, self.overhead_bytes)
        if prediction.least_bytes <= self.largest_bytes:
            return None
        over = max(prediction.middle_bytes, prediction.least_bytes) - self.largest_bytes
        middle, least = format_bytes(prediction.middle_bytes), format_bytes(prediction.least_bytes)
        words = f"predicted {middle}, and hardly less than {least}"
        return Refusal(over / GIB, f"{words}; the largest device may hold {format_bytes(self.largest_bytes)}")

    def too_large(self, now_s: float) -> str | None:
        """Return why no device can ever take a declared request, or None."""
        declared_bytes = self._declared.exact_bytes or self._declared.least_bytes
        if declared_bytes is None or not self.largest_bytes or declared_bytes <= self.largest_bytes:
            self._too_large_since_s = None
            return None
        if self._too_large_since_s is None:
            self._too_large_since_s = now_s
        if now_s - self._too_large_since_s < SETTLE_S:
            return None
        return (
            f"vram={format_bytes(declared_bytes)} is more than the largest device of the pool may hold "
            f"({format_bytes(self.largest_bytes)}); ask for less, or add a larger device"
        )
