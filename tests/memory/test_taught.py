"""What is explained rests on the peaks that the coordinator learns from, earlier studies with the same code too."""

from __future__ import annotations

import dataclasses

import optuna
import pytest
from support.studies import GIB, attempt

from vrampool.coordinator.earlier import Learning, taught
from vrampool.messages import ObjectiveRef, SubmissionSpec
from vrampool.queueing import RunningTrial, WorkerRecord
from vrampool.signing import Signer, sign_spec
from vrampool.storage import Catalog, Mark, open_storage
from vrampool.storage.marks import MARK

CODE = ObjectiveRef("import", "/home/ada/train.py:objective", source_sha256="a")
OTHER = dataclasses.replace(CODE, source_sha256="b")
CARD = WorkerRecord(
    *("w-1", "hub", 1, "GPU-1", "GPU 0 (NVIDIA H200)", "cuda", 140 * GIB, 119 * GIB, 119 * GIB, 16, "ready")
)


class Books:
    """A pool's storage, with studies of several submissions."""

    def __init__(self, folder) -> None:
        self.storage = open_storage(f"sqlite:///{folder / 'study.db'}", create_schema=True)
        self.signer = Signer(b"x" * 64)
        self.catalog = Catalog(self.storage)

    def study(self, name: str, trials: int, objective: ObjectiveRef = CODE, **facts: object) -> SubmissionSpec:
        """Add a study whose trial n held n+1 GiB."""
        spec = SubmissionSpec(f"sub-{name}", name, objective)
        self.catalog.add_submission(spec.submission_id, name, sign_spec(self.signer, spec))
        mark = {MARK: Mark(spec.submission_id).to_json()}
        study = optuna.create_study(study_name=name, storage=self.storage)
        for number in range(trials):
            values = {"params": {"batch": number + 1}, "peak_bytes": (number + 1) * GIB} | facts
            study.add_trial(attempt(user_attrs=mark, **values))
        return spec

    def trials(self, name: str):
        return self.storage.get_all_trials(self.storage.get_study_id_from_name(name))

    def taught(self, name: str, records=()):
        return taught(self.storage, self.signer, name, self.trials(name), records)


@pytest.fixture
def books(tmp_path):
    made = Books(tmp_path)
    yield made
    made.storage.close()


def test_peaks_of_other_studies_count_where_code_and_device_are_the_same(books):
    books.study("first", 5)
    books.study("other-code", 3, OTHER)
    books.study("other-card", 4, device_name="NVIDIA A100")
    books.study("too-large", 2, end="infeasible")
    books.study("now", 2)
    found = books.taught("now", [CARD])
    assert [peak.peak_bytes // GIB for peak in found.others] == [1, 2, 3, 4, 5]
    assert [peak.peak_bytes // GIB for peak in found.own] == [1, 2]
    assert found == books.taught("now"), "long after the pool: the devices on which its own trials ran"


def test_it_is_what_the_coordinator_learns_from(books):
    books.study("first", 5)
    books.study("other-card", 4, device_name="NVIDIA A100")
    spec = books.study("now", 3)
    sizing = Learning(books.storage, books.catalog, books.signer).sizing(spec)
    for trial in books.trials("now"):
        sizing.learn(trial)
    sizing.devices([CARD.device_name])
    assert sizing.taught == books.taught("now", [CARD]) and len(sizing.taught.peaks) == 8


def test_a_running_trial_teaches_once_it_has_been_around_and_no_more_when_it_has_ended(books):
    books.study("now", 2)
    study = optuna.load_study(study_name="now", storage=books.storage)
    study.ask()
    running = (
        RunningTrial("now", 1, 9 * GIB, 9 * GIB, 0.0, peak_bytes=9 * GIB),
        RunningTrial("now", 2, 7 * GIB, 6 * GIB, 0.0, peak_bytes=6 * GIB),
    )
    found = books.taught("now", [dataclasses.replace(CARD, running=running)])
    assert [peak.peak_bytes // GIB for peak in found.own] == [1, 2, 6]


def test_a_study_that_no_submission_of_this_pool_made_has_nothing_to_go_by(books):
    optuna.create_study(study_name="plain", storage=books.storage)
    assert books.taught("plain") is None
