"""What earlier submissions of the same objective have shown: the pool does not begin anew with each study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from vrampool.coordinator.sizing import Sizing
from vrampool.errors import MessageError
from vrampool.measured import past_peak
from vrampool.memory.declared import read_vram
from vrampool.memory.learning.fitting import Fitter, available
from vrampool.memory.peaks import PastPeak, Taught
from vrampool.messages import EndKind, ObjectiveRef, SubmissionSpec
from vrampool.queueing import WorkerRecord
from vrampool.signing import Signer, open_spec
from vrampool.storage import Catalog, SubmissionRow, attempt_of, mark_of

#: So many studies are read, the newest first, and so many of their peaks are kept: a new study is to begin at once.
_STUDIES = 5
_PEAKS = 200


class Learning:
    """Makes the sizing of each submission: what earlier ones have shown, and one thread that learns for all.

    Args:
        storage: The pool's storage.
        catalog: Its submissions.
        signer: Checks them.
    """

    def __init__(self, storage: Any, catalog: Catalog, signer: Signer) -> None:
        self._earlier = EarlierSubmissions(storage, catalog, signer)
        self._fitter = Fitter()

    def sizing(self, spec: SubmissionSpec) -> Sizing:
        """Return the sizing of a submission."""
        learns = available() and read_vram(spec.vram).is_learned
        if not learns:
            return Sizing(spec)
        self._fitter.prepare()
        return Sizing(spec, self._fitter, self._earlier.peaks(spec), self._earlier.of_other_code(spec))

    def close(self) -> None:
        """Learn no more."""
        self._fitter.close()


class EarlierSubmissions:
    """Finds submissions by what they run.

    Args:
        storage: The pool's storage.
        catalog: Its submissions.
        signer: Checks them; one that is not signed by this pool teaches nothing.
    """

    def __init__(self, storage: Any, catalog: Catalog, signer: Signer) -> None:
        self._storage = storage
        self._catalog = catalog
        self._signer = signer

    def of_other_code(self, spec: SubmissionSpec) -> frozenset[str]:
        """Return ids of the study's submissions that run another function: their peaks are of something else.

        One whose source was changed counts as the same: a study that is gone on with after a small repair goes on
        with what it knows.
        """
        rows = [row for row in self._catalog.submissions() if row.study_name == spec.study_name]
        specs = [self._open(row) for row in rows if row.id != spec.submission_id]
        return frozenset(
            other.submission_id
            for other in specs
            if other is not None and other.objective.target != spec.objective.target
        )

    def peaks(self, spec: SubmissionSpec) -> list[PastPeak]:
        """Return peaks from other studies whose objective is the very same code, the oldest first."""
        same: dict[str, set[str]] = {}
        for row in sorted(self._catalog.submissions(), key=lambda row: -row.sequence):
            if row.study_name == spec.study_name or row.id == spec.submission_id:
                continue
            if row.study_name not in same and len(same) == _STUDIES:
                continue
            other = self._open(row)
            if other is not None and is_same_code(other.objective, spec.objective):
                same.setdefault(row.study_name, set()).add(row.id)
        found: list[PastPeak] = []
        for study_name, ids in reversed(same.items()):
            found += self._of_study(study_name, ids)
        return found[-_PEAKS:]

    def _of_study(self, study_name: str, ids: set[str]) -> list[PastPeak]:
        try:
            trials = self._storage.get_all_trials(self._storage.get_study_id_from_name(study_name), deepcopy=False)
        except KeyError:  # deleted since
            return []
        found = []
        for trial in trials[-4 * _PEAKS :]:
            mark, facts = mark_of(trial), attempt_of(trial)
            if mark is None or mark.submission not in ids or facts is None or facts.end == EndKind.INFEASIBLE:
                continue
            if trial.state.is_finished() and (peak := past_peak(trial)) is not None:
                found.append(peak)
        return found

    def newest(self, study_name: str) -> SubmissionSpec | None:
        """Return the newest submission of a study; None: it has none that this pool has signed."""
        rows = [row for row in self._catalog.submissions() if row.study_name == study_name]
        specs = (self._open(row) for row in sorted(rows, key=lambda row: -row.sequence))
        return next((spec for spec in specs if spec is not None), None)

    def _open(self, row: SubmissionRow) -> SubmissionSpec | None:
        try:
            return open_spec(self._signer, row.id, row.spec_text)
        except MessageError:
            return None


def taught(
    storage: Any, signer: Signer, study_name: str, trials: Sequence[FrozenTrial], records: Iterable[WorkerRecord] = ()
) -> Taught | None:
    """Return what the requests of a study are learned from, as the coordinator sees it: for who explains them.

    Args:
        storage: The pool's storage.
        signer: Opens submissions.
        study_name: The study; its newest submission says which code is the same.
        trials: All its trials, as read just now.
        records: The live workers; without any, the devices count on which the study's own trials ran.

    Returns:
        The peaks; None: the study has no submission of this pool.
    """
    earlier = EarlierSubmissions(storage, Catalog(storage), signer)
    spec = earlier.newest(study_name)
    if spec is None:
        return None
    sizing = Sizing(spec, None, earlier.peaks(spec), earlier.of_other_code(spec))
    for trial in trials:
        if trial.state.is_finished():
            sizing.learn(trial)
    records = list(records)
    running = {
        item.number: item.peak_bytes
        for record in records
        for item in record.running
        if item.study == study_name and item.peak_bytes
    }
    sizing.watch({number: peak for number, peak in running.items() if _runs(trials, number)}, trials)
    sizing.devices([record.device_name for record in records] or [peak.device for peak in sizing.taught.own])
    return sizing.taught


def _runs(trials: Sequence[FrozenTrial], number: int) -> bool:
    """Say whether a trial has not ended yet: workers tell of it a moment longer."""
    return number < len(trials) and not trials[number].state.is_finished()


def is_same_code(one: ObjectiveRef, other: ObjectiveRef) -> bool:
    """Return whether two references lead to the same function in the same source."""
    if one.kind != other.kind:
        return False
    if one.kind == "bundle":
        return one.bundle_sha256 is not None and one.bundle_sha256 == other.bundle_sha256
    return one.target == other.target and one.source_sha256 == other.source_sha256
