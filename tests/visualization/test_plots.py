"""The pictures that a study's attempts give: with plotly as Optuna's, and with matplotlib."""

from __future__ import annotations

import subprocess
import sys

import matplotlib as mpl
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from support.studies import GIB, attempt, recorded_study, study_of

import vrampool.visualization as interactive
from vrampool.errors import InputError
from vrampool.visualization import matplotlib as drawn
from vrampool.visualization.attempts import choices_of, read_attempts
from vrampool.visualization.measures import gantt, params_by_influence, startup_tax, throughput

mpl.use("agg")
PLOTS = sorted(drawn.__all__)


@pytest.fixture(scope="module")
def study():
    return recorded_study("resnet", 24)


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def overlap(first, second):
    """True when two boxes cover some of the same time and memory."""
    return (
        first.left_s < second.right_s
        and second.left_s < first.right_s
        and first.bottom_bytes < second.bottom_bytes + second.height_bytes
        and second.bottom_bytes < first.bottom_bytes + first.height_bytes
    )


def test_no_two_boxes_of_a_device_overlap(study):
    (device,), seconds = gantt(read_attempts(study))
    boxes = device.boxes
    assert len(boxes) == 24 and seconds > 10
    assert [
        (a.attempt.number, b.attempt.number)
        for index, a in enumerate(boxes)
        for b in boxes[index + 1 :]
        if overlap(a, b)
    ] == []
    assert device.at_once == 4 and device.budget_bytes == 40 * GIB


def test_a_box_is_as_high_as_the_lease_at_the_end_or_as_the_peak_where_that_was_more():
    trials = [
        attempt(0, 5, request_bytes=None, lease_bytes=20 * GIB, lease_at_end_bytes=3 * GIB, peak_bytes=2 * GIB),
        attempt(1, 5, request_bytes=2 * GIB, peak_bytes=4 * GIB),
        attempt(6, 5, request_bytes=2 * GIB, peak_bytes=GIB),
    ]
    (device,), _ = gantt(read_attempts(study_of(trials)))
    assert [(box.bottom_bytes // GIB, box.height_bytes // GIB) for box in device.boxes] == [(0, 3), (3, 4), (0, 2)]


def test_the_cap_counts_the_overhead_of_the_driver_which_torch_does_not_see():
    trial = attempt(cap_bytes=2 * GIB, overhead_bytes=GIB, request_bytes=3 * GIB)
    (device,), _ = gantt(read_attempts(study_of([trial])))
    assert device.boxes[0].cap_bytes == 3 * GIB


def test_parameters_that_go_with_memory_come_first():
    trials = [
        attempt(
            params={"batch": 2**power, "seed": (power * 7) % 5 + 1, "amp": power % 2 == 0}, peak_bytes=2**power * GIB
        )
        for power in range(1, 9)
    ]
    assert params_by_influence(read_attempts(study_of(trials)))[0] == "batch"


def test_trials_per_hour_counts_those_that_ended_well_and_shows_the_others_apart():
    trials = [attempt(second, 1.0) for second in range(30)] + [attempt(5, 1.0, end="oom", verdict="culprit")]
    found = throughput(read_attempts(study_of(trials)))
    assert sum(found.counted) == 30 and sum(found.others) == 1
    assert found.per_hour == pytest.approx(3600, rel=0.1)
    assert sum(found.running) * found.window_s == pytest.approx(31, rel=0.05)


def test_the_tax_is_all_time_that_is_not_the_objective():
    trial = attempt(run_s=6.0, spawn_s=2.0, handover_s=1.0, spare=False)
    tax = startup_tax(read_attempts(study_of([trial]), [{"number": 0, "residue_bytes": 0, "back_s": 1.0}]))
    assert tax.share == pytest.approx(0.4)
    assert (tax.spares, tax.median_s("spawn_s")) == (0, 2.0)


@pytest.mark.parametrize("name", PLOTS)
def test_each_picture_comes_as_plotly_figure_that_names_what_it_shows(study, name):
    figure = getattr(interactive, name)(study)
    assert type(figure).__module__.startswith("plotly.")
    assert study.study_name in figure.layout.title.text
    assert any(trace.x is not None and len(trace.x) for trace in figure.data)
    assert figure.to_json()


@pytest.mark.parametrize("name", PLOTS)
def test_each_picture_comes_as_axes_with_labels(study, name):
    axes = getattr(drawn, name)(study)
    axes = axes if isinstance(axes, list) else [axes]
    assert any(item.get_xlabel() or item.get_title(loc="left") for item in axes)
    figure = axes[0].figure
    figure.draw_without_rendering()
    texts = {text.get_text() for item in axes for text in item.get_xticklabels() + item.get_yticklabels()}
    assert texts - {""}, "an axis without a number says nothing"


def test_the_prediction_tells_the_margin_apart_from_the_prediction():
    trials = [
        attempt(predicted_bytes=2 * GIB, request_bytes=3 * GIB, peak_bytes=int(2.1 * GIB)),
        attempt(request_bytes=3 * GIB),
    ]
    figure = interactive.plot_vram_prediction(study_of(trials))
    assert "asked for 3.0 GiB, peak 2.1 GiB" in figure.data[0].text[0]


def test_many_attempts_are_drawn_without_a_word_each():
    """A page with a tooltip for each of thousands of points would be of megabytes."""
    trials = [attempt(number, 1.0, params={"batch": number % 60 + 1}) for number in range(900)]
    (axes,) = drawn.plot_vram_slice(study_of(trials))
    assert len(axes.lines) == 0 and len(axes.collections) == 1


@pytest.mark.parametrize("name", PLOTS)
def test_a_study_that_never_ran_in_a_pool_is_wrong_input(name):
    plain = optuna.create_study(study_name="plain")
    plain.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    for module in (interactive, drawn):
        with pytest.raises(InputError, match="no trial of plain has run in a pool yet"):
            getattr(module, name)(plain)
    with pytest.raises(InputError, match="needs an Optuna study or a handle, not int"):
        getattr(interactive, name)(3)


def test_without_plotly_the_error_names_the_extra_and_the_other_namespace(tmp_path):
    program = (
        "import sys; sys.modules['plotly'] = None; sys.modules['plotly.graph_objects'] = None\n"
        "from vrampool.errors import InputError\n"
        "from vrampool.visualization import plot_oom_map\n"
        "try: plot_oom_map(None)\n"
        "except InputError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "pip install 'vrampool[viz]'" in done.stdout and "vrampool.visualization.matplotlib" in done.stdout


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([8, 200], ["8", "16", "32", "64", "128"]),
        ([0.18, 2.2], ["0.2", "0.5", "1", "2"]),
        ([1e-6, 1.0], ["1e-06", "0.0001", "0.01", "1"]),
    ],
)
def test_a_logarithmic_axis_has_numbers_that_people_read(values, ticks):
    low, high = values
    inside = [low * (high / low) ** (step / 9) for step in range(10)]
    trials = [attempt(number, 1.0, params={"x": float(value)}) for number, value in enumerate(inside)]
    (axes,) = drawn.plot_vram_slice(study_of(trials))
    assert [label.get_text() for label in axes.get_xticklabels()] == ticks


def test_beside_others_an_axis_has_few_numbers_and_choices_come_as_they_were_given():
    choices = CategoricalDistribution([64, 256, 1024])
    space = {"batch": choices, "rate": FloatDistribution(1e-4, 1e-1, log=True), "x": FloatDistribution(0, 1)}
    trials = [
        attempt(number, 1.0, params={"batch": (1024, 64, 256)[number % 3], "rate": 2e-4 * 1.6**number, "x": 0.5})
        for number in range(12)
    ]
    for trial in trials:
        trial.distributions = space
    found = {axes.get_title(loc="left") or axes.get_title(): axes for axes in drawn.plot_vram_slice(study_of(trials))}
    assert [label.get_text() for label in found["batch"].get_xticklabels()] == ["64", "256", "1024"]
    assert 2 <= len(found["rate"].get_xticklabels()) <= 3
    assert choices_of(None, ["b", 10, 9, "a"]) == ["9", "10", "a", "b"]
