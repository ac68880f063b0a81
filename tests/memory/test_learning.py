"""What the model of peaks makes of parameters: sizes, choices, conditions, lower bounds, and what it has never seen."""

from __future__ import annotations

import random
from statistics import median

import pytest

pytest.importorskip("sklearn", reason="learning needs the extra `learn`")

from vrampool.memory.learning.features import Encoder, Kind
from vrampool.memory.learning.learned import learn
from vrampool.memory.peaks import PastPeak
from vrampool.memory.requests import next_request
from vrampool.units import GIB, MIB, format_bytes

OVERHEAD_BYTES = 780 * MIB


def need(params):
    """Activations and weights of a made-up network."""
    product = params["batch"] * params["width"] * 40_000 + params["width"] ** 2 * 3_000
    if params.get("optimizer") == "adam":
        product *= 1.5
    return OVERHEAD_BYTES + int(product * params.get("copies", 1))


def peak_of(params, **more):
    return PastPeak(need(params), params=params, overhead_bytes=OVERHEAD_BYTES, **more)


def draw(count, seed=0, batch=(8, 256), **more):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        params = {
            "batch": int(rng.uniform(*batch)),
            "width": int(2 ** rng.uniform(6, 11)),
            "lr": 10 ** rng.uniform(-5, -1),
        }
        params |= {name: rng.choice(values) for name, values in more.items()}
        rows.append(params)
    return rows


def median_error(learned, rows):
    return median(abs(learned.predict(params).middle_bytes / need(params) - 1) for params in rows)


def test_a_peak_is_predicted_from_parameters_and_what_does_not_matter_is_found_out():
    learned = learn([peak_of(params) for params in draw(30, dropout=[0.0, 0.1, 0.5])])
    rows = draw(40, seed=1, dropout=[0.0, 0.1, 0.5])
    assert median_error(learned, rows) < 0.1
    assert sum(learned.predict(params).upper_bytes < need(params) for params in rows) <= 2
    assert learned.drivers == ["width", "batch"]
    assert learned.directions == {"width": 1, "batch": 1, "lr": 0, "dropout": 0}


def test_choices_count_whether_they_are_words_or_numbers():
    rows = draw(40, optimizer=["sgd", "adam"], copies=[1, 2, 4])
    learned = learn([peak_of(params) for params in rows])
    assert median_error(learned, draw(40, seed=1, optimizer=["sgd", "adam"], copies=[1, 2, 4])) < 0.12
    assert learned.effects["copies"].factor == pytest.approx(4, rel=0.2)
    assert learned.effects["optimizer"].factor == pytest.approx(1.5, rel=0.2)


def test_a_conditional_parameter_that_is_not_planned_is_taken_for_its_greediest_value():
    """A plan holds only what every trial has asked for; whether it will have copies, and how many, is not known."""
    rows = draw(60, seed=3)
    for index, params in enumerate(rows):
        params["optimizer"] = "adam" if index % 2 else "sgd"
        if params["optimizer"] == "adam":
            params["copies"] = 1 + index % 3
    learned = learn([peak_of(params) for params in rows])
    planned = {"batch": 64, "width": 512, "lr": 1e-3}
    adam = learned.predict({**planned, "optimizer": "adam"})
    assert adam.upper_bytes >= need({**planned, "optimizer": "adam", "copies": 3})
    sgd = learned.predict({**planned, "optimizer": "sgd"})
    assert need({**planned, "optimizer": "sgd"}) <= sgd.upper_bytes < adam.upper_bytes / 2
    whole = learned.predict({**planned, "optimizer": "adam", "copies": 1}, whole=True)
    assert whole.middle_bytes == pytest.approx(need({**planned, "optimizer": "adam", "copies": 1}), rel=0.15)


@pytest.mark.parametrize("seed", range(3))
def test_larger_batches_than_any_seen_are_met_with_caution(seed):
    learned = learn([peak_of(params) for params in draw(20, seed=seed, batch=(8, 64))])
    beyond = [{"batch": batch, "width": 1024, "lr": 1e-3} for batch in (96, 128, 256)]
    for params in beyond:
        found = learned.predict(params)
        assert found.upper_bytes >= need(params)
        assert found.outside == ("batch",)


def test_a_parameter_that_never_varied_makes_it_cautious_when_it_does():
    learned = learn([peak_of(params | {"batch": 64}) for params in draw(20)])
    params = {"batch": 192, "width": 700, "lr": 1e-3}
    found = learned.predict(params)
    assert found.outside == ("batch",)
    assert found.upper_bytes >= need(params)


def test_trials_that_ran_out_of_memory_raise_the_prediction_and_early_failures_do_not_lower_it():
    rows = draw(25, seed=5)
    small = [peak_of(params) for params in rows if need(params) < 3 * GIB]
    large = [params for params in rows if need(params) >= 3 * GIB]
    short = [PastPeak(3 * GIB, True, params, OVERHEAD_BYTES, asked_bytes=200 * MIB) for params in large]
    early = [PastPeak(900 * MIB, True, params, OVERHEAD_BYTES) for params in large]
    target = max(large, key=need)
    without, with_short, with_early = (learn([*small, *more]).predict(target) for more in ([], short, early))
    assert with_short.upper_bytes > 3 * GIB
    assert with_early.middle_bytes == without.middle_bytes


def test_a_model_needs_three_whole_peaks():
    rows = [peak_of(params) for params in draw(4)]
    assert learn(rows[:2]) is None
    assert learn([rows[0]._replace(censored=True), *rows[1:3]]) is None
    assert learn(rows[:3]) is not None


def test_without_a_measured_overhead_one_is_found_that_predicts_well():
    """On the CPU nobody measures it, and a process holds hundreds of MiB before it has any parameters."""
    rows = [PastPeak(need(params), params=params) for params in draw(40, seed=2)]
    learned = learn(rows)
    assert learned.overhead_bytes > 400 * MIB
    assert median_error(learned, draw(40, seed=8)) < 0.1


def test_trials_without_parameters_are_taken_for_alike():
    learned = learn([PastPeak(GIB + index * MIB, params={}, overhead_bytes=OVERHEAD_BYTES) for index in range(10)])
    found = learned.predict({})
    assert found.middle_bytes == pytest.approx(GIB, rel=0.05)
    assert found.upper_bytes < 1.3 * GIB


def test_a_request_says_what_it_rests_on():
    past = [peak_of(params) for params in draw(30)]
    learned = learn(past)
    params = {"batch": 100, "width": 500, "lr": 1e-3}
    request = next_request("auto", past, OVERHEAD_BYTES, params=params, model=learned)
    predicted = format_bytes(request.predicted_bytes)
    assert request.reason.startswith(f"predicted {predicted} from width, batch; 30 trials; margin "), request.reason
    assert request.predicted_bytes == pytest.approx(need(params), rel=0.15)
    assert request.request_bytes > request.predicted_bytes


def test_a_request_is_never_below_what_a_trial_that_was_no_larger_has_reached():
    past = [peak_of(params) for params in draw(30)]
    learned = learn(past)
    params = {"batch": 100, "width": 500, "lr": 1e-3}
    odd = PastPeak(9 * GIB, params={"batch": 90, "width": 480, "lr": 1e-2}, overhead_bytes=OVERHEAD_BYTES)
    request = next_request("auto", [*past, odd], OVERHEAD_BYTES, params=params, model=learned)
    assert request.request_bytes >= 9 * GIB
    assert "raised, for a trial that was no larger needed 9.0 GiB" in request.reason
    smaller = {"batch": 80, "width": 480, "lr": 1e-3}
    assert next_request("auto", [*past, odd], OVERHEAD_BYTES, params=smaller, model=learned).request_bytes < 5 * GIB
    failed = odd._replace(censored=True, asked_bytes=GIB)
    assert next_request("auto", [*past, failed], None, params=params, model=learned).request_bytes >= 12 * GIB


def test_bounds_hold_a_prediction():
    past = [peak_of(params) for params in draw(30)]
    learned = learn(past)
    params = {"batch": 100, "width": 500, "lr": 1e-3}
    low = next_request(("4GiB", "20GiB"), past, params=params, model=learned)
    assert (low.request_bytes, "raised to the submission's bound of 4.0 GiB" in low.reason) == (4 * GIB, True)
    high = next_request({"least": None, "most": 2 * GIB}, past, params=params, model=learned)
    assert (high.request_bytes, "kept to the submission's bound of 2.0 GiB" in high.reason) == (2 * GIB, True)
    unknown = next_request((None, "20GiB"), [])
    assert unknown.request_bytes == 20 * GIB, "what the user allows is enough room to measure it"


def test_columns_say_which_parameters_a_trial_lacks():
    encoder = Encoder.of([{"kind": "a", "x": 2}, {"kind": "b"}, {"kind": "c", "x": 8}])
    kinds = [(column.name, column.kind) for column in encoder.columns]
    assert kinds == [("kind", Kind.CHOICE)] * 3 + [("x", Kind.LOG), ("x", Kind.ABSENT)]
    assert list(encoder.encode({"kind": "b"})) == [-0.5, 0.5, -0.5, 0.0, 0.5]
    assert encoder.outside({"kind": "d", "x": 16}).unseen == ("kind",)
