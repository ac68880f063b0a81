"""What a submission's trials ask for: declared, learned in the background, or by a function in its own process."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest

pytest.importorskip("sklearn", reason="learning needs the extra `learn`")

from optuna.trial import TrialState, create_trial
from support.waiting import until

from vrampool.asking import build_spec
from vrampool.coordinator.sizing import SETTLE_S, Sizing
from vrampool.errors import InputError
from vrampool.memory.declared import read_vram
from vrampool.memory.learning.fitting import Fitter
from vrampool.messages import AttemptFacts, EndKind, ObjectiveRef, SubmissionSpec, Verdict
from vrampool.settings import load_settings
from vrampool.storage import ATTEMPT, Mark
from vrampool.storage.marks import MARK
from vrampool.units import GIB, MIB

OVERHEAD_BYTES = 600 * MIB
DEVICE = "NVIDIA H200"
SPACE = {"batch": optuna.distributions.IntDistribution(1, 4096), "lr": optuna.distributions.FloatDistribution(0, 1)}


def spec_of(vram="auto", submission="sub"):
    return SubmissionSpec(submission, "study", ObjectiveRef("import", "m:f"), vram=vram)


def ended(number, batch, *, end=EndKind.COMPLETE, peak=None, device=DEVICE, submission="sub", lr=0.5, **more):
    peak = OVERHEAD_BYTES + batch * 20 * MIB if peak is None else peak
    facts = AttemptFacts(
        end=end, device_name=device, peak_bytes=peak, lease_bytes=peak, overhead_bytes=OVERHEAD_BYTES, **more
    )
    good = end in (EndKind.COMPLETE, EndKind.PRUNED)
    trial = create_trial(
        state=TrialState.COMPLETE if good else TrialState.FAIL,
        value=1.0 if good else None,
        params={"batch": batch, "lr": lr},
        distributions=SPACE,
        user_attrs={MARK: Mark(submission).to_json(), ATTEMPT: facts.to_json()},
    )
    trial.number = number
    return trial


@pytest.fixture
def fitter():
    made = Fitter()
    yield made
    made.close()


def learned(fitter, trials, vram="auto", **more):
    sizing = Sizing(spec_of(vram), fitter, **more)
    sizing.largest_bytes, sizing.overhead_bytes = 16 * GIB, OVERHEAD_BYTES
    for trial in trials:
        sizing.learn(trial)
    sizing.devices([f"GPU 0 ({DEVICE})"])
    sizing.refresh()
    assert fitter.settle(60)
    return sizing


SOME = [ended(index, 2 ** (index % 8 + 1), lr=index % 3 / 3) for index in range(12)]


def test_requests_follow_from_parameters_as_soon_as_a_fit_is_there(fitter):
    sizing = Sizing(spec_of(), fitter)
    sizing.largest_bytes = 16 * GIB
    assert sizing.request({"batch": 8}).request_bytes is None, "unknown: alone"
    for trial in SOME:
        sizing.learn(trial)
    before = sizing.request({"batch": 8, "lr": 0.1})
    assert "largest peak" in before.reason, "no fit yet, and nobody waits for one"
    sizing.refresh()
    assert fitter.settle(60)
    small, large = (sizing.request({"batch": batch, "lr": 0.1}) for batch in (8, 200))
    assert "predicted" in small.reason and "from batch" in small.reason
    assert small.request_bytes < 1.2 * GIB < 4 * GIB < large.request_bytes < before.request_bytes * 2
    assert sizing.smallest() < GIB


def test_a_smallest_request_of_all_that_a_device_has_is_for_an_idle_one(fitter):
    """Else no device ever had room for it, and its study stood still until the age limit."""
    large = [ended(index, 8, peak=peak) for index, peak in enumerate((14 * GIB, 13 * GIB, 15 * GIB))]
    sizing = learned(fitter, large)
    assert sizing.model is not None and sizing.model.smallest_bytes > sizing.largest_bytes
    assert sizing.request({"batch": 8, "lr": 0.1}).request_bytes is None
    assert sizing.smallest() is None


def test_doubt_alone_does_not_take_a_device_and_is_lent_what_it_does_not_ask_for(fitter):
    few = [
        ended(index, batch, peak=peak)
        for index, (batch, peak) in enumerate([(8, 6 * GIB), (16, 5 * GIB), (32, 8 * GIB)])
    ]
    sizing = learned(fitter, few)
    found = sizing.request({"batch": 24, "lr": 0.1})
    assert found.predicted_bytes is not None and found.predicted_bytes < 8 * GIB
    assert sizing.model.predict({"batch": 24, "lr": 0.1}, OVERHEAD_BYTES).upper_bytes > 10 * GIB
    assert found.request_bytes == max(8 * GIB, -(-int(found.predicted_bytes * 1.25) // MIB) * MIB)
    assert found.wish_bytes > 10 * GIB
    assert "keep others from the device" in found.reason
    assert sizing.smallest() <= found.request_bytes


def test_what_another_kind_of_device_has_shown_is_not_listened_to(fitter):
    other = [ended(index, 8, peak=9 * GIB, device="NVIDIA T4") for index in range(12)]
    sizing = learned(fitter, [*SOME, *other])
    assert sizing.request({"batch": 8, "lr": 0.5}).request_bytes < 1.2 * GIB


def test_a_study_goes_on_with_what_it_knows_when_its_devices_are_replaced(fitter):
    sizing = Sizing(spec_of(), fitter)
    for trial in SOME:
        sizing.learn(trial)
    sizing.devices(["GPU 0 (NVIDIA B300)"])
    assert "largest peak of 12 trials" in sizing.request({"batch": 8}).reason


def test_what_counts_follows_the_devices_of_the_pool_as_they_come(fitter):
    sizing = Sizing(spec_of(), fitter)
    for trial in (*SOME, *(ended(20 + index, 8, peak=9 * GIB, device="NVIDIA T4") for index in range(5))):
        sizing.learn(trial)
    counted = [len(sizing.taught.peaks)]
    for names in ([f"GPU 0 ({DEVICE})"], [f"GPU 0 ({DEVICE})", "GPU 1 (NVIDIA T4)"], ["GPU 1 (NVIDIA T4)"]):
        sizing.devices(names)
        counted.append(len(sizing.taught.peaks))
    sizing.learn(ended(30, 8, device="NVIDIA T4"))
    assert [*counted, len(sizing.taught.peaks)] == [17, 12, 17, 5, 6]


def test_earlier_studies_of_the_same_code_count_and_other_code_in_the_study_does_not(fitter):
    from vrampool.measured import past_peak

    foreign = [ended(index, 8, peak=9 * GIB, submission="other") for index in range(12)]
    earlier = [past_peak(trial) for trial in SOME]
    sizing = learned(fitter, foreign, earlier=earlier, others={"other"})
    assert sizing.model.trials == 12
    assert sizing.request({"batch": 8, "lr": 0.5}).request_bytes < 1.2 * GIB


def test_what_all_of_a_device_is_asked_for_runs_alone(fitter):
    request = learned(fitter, SOME).request({"batch": 3000, "lr": 0.5})
    assert request.request_bytes is None
    assert request.reason.endswith("that is all a device has, so it runs alone on one")


def test_only_what_was_measured_refuses_a_proposal(fitter):
    sizing = learned(
        fitter, [*SOME, *SOME, ended(24, 700, end=EndKind.INFEASIBLE, peak=15 * GIB, verdict=Verdict.CULPRIT)]
    )
    assert sizing.refusal({"batch": 64, "lr": 0.5}) is None
    by_trial = sizing.refusal({"batch": 900, "lr": 0.7})
    assert by_trial is not None and by_trial.over_gib > 0
    large = ended(24, 1600, end=EndKind.INFEASIBLE, peak=15 * GIB, verdict=Verdict.CULPRIT, asked_bytes=2 * GIB)
    by_model = learned(fitter, [*SOME, *SOME, large]).refusal({"batch": 1500, "lr": 0.5})
    assert by_model is not None and "predicted" in by_model.reason
    assert Sizing(spec_of(), None).refusal({"batch": 4000}) is None
    declared = learned(fitter, SOME, vram=4 * GIB)
    assert declared.refusal({"batch": 4000, "lr": 0.5}) is None, "the user has said that it fits"


def test_a_running_trial_that_has_reported_teaches_too(fitter):
    sizing = Sizing(spec_of(), fitter)
    running = [ended(number, 2 ** (number + 2)) for number in range(3)]
    sizing.watch({number: OVERHEAD_BYTES + 2 ** (number + 2) * 20 * MIB for number in range(3)}, running)
    assert "largest peak of 3 trials" in sizing.request({}).reason
    sizing.learn(running[0])
    assert "largest peak of 3 trials" in sizing.request({}).reason, "not counted twice"


def test_a_lower_bound_that_fits_no_device_ends_the_submission_after_a_while():
    sizing = Sizing(spec_of(read_vram(("32GiB", None)).to_json()))
    sizing.largest_bytes = 16 * GIB
    assert sizing.too_large(0.0) is None
    assert "vram=32.0 GiB is more than the largest device" in (sizing.too_large(SETTLE_S) or "")


# ---- functions of the parameters -------------------------------------------------------------------


def spec_with(function, tmp_path, **settings):
    made = load_settings(settings, env={})
    return build_spec(made, lambda trial: 1.0, n_trials=1, vram=function)[0]


@pytest.fixture
def sizing_of(tmp_path):
    made = []

    def make(function):
        spec = spec_with(function, tmp_path)
        json.dumps(spec.to_json())
        made.append(Sizing(spec))
        until(made[-1].ready, what="the function's process")
        return made[-1]

    yield make
    for sizing in made:
        sizing.close()


def test_a_function_of_the_parameters_sizes_trials_in_a_process_of_its_own(sizing_of):
    import os

    here = os.getpid()

    def own(params):
        import os

        if any(name.startswith("VRAMPOOL") for name in os.environ) or os.getpid() == here:
            raise RuntimeError("this is where the secrets are")
        print("a word that is no answer")
        return params["batch"] * 2**30

    sizing = sizing_of(own)
    request = sizing.request({"batch": 3})
    assert request.request_bytes == 3 * GIB
    assert "own function" in request.reason
    assert sizing.request({"batch": 2}).request_bytes == 2 * GIB
    assert sizing.smallest() == 2 * GIB


def test_a_function_by_import_path_may_return_text(sizing_of, tmp_path):
    path = tmp_path / "sizes.py"
    path.write_text("def of(params):\n    return f\"{params['batch']}GiB\"\n")
    assert sizing_of(f"{path}:of").request({"batch": 5}).request_bytes == 5 * GIB


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda params: params["nothing"], "KeyError"),
        (lambda params: -1, "more than 0 bytes"),
        (lambda params: None, "TypeError"),
        (lambda params: __import__("os")._exit(3), "went away"),
    ],
)
def test_a_function_that_fails_says_how(sizing_of, function, words):
    with pytest.raises(InputError, match=words):
        sizing_of(function).request({"batch": 3})


def test_a_function_that_cannot_be_loaded_is_told_before_anything_runs(tmp_path):
    path = Path(tmp_path / "sizes.py")
    path.write_text("def of(params):\n    return 1\n")
    sizing = Sizing(spec_with(f"{path}:of", tmp_path))
    path.write_text("def of(params):\n    return 2\n")
    with pytest.raises(InputError, match="changed since"):
        until(sizing.ready, what="an answer")
    with pytest.raises(InputError, match=r"vram function .*one dict of parameters"):
        spec_with(lambda: 1, tmp_path)


@pytest.mark.parametrize("value", [("1GiB",), ("2GiB", "1GiB"), ("1GiB", "2GiB", "3GiB"), ("x", None)])
def test_bounds_that_are_none_are_refused_with_the_remedy(value):
    with pytest.raises(InputError, match="vram"):
        read_vram(value)
