"""The picture of memory over time: what is read from the history, and what is drawn."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from vrampool.errors import InputError
from vrampool.units import GIB, MIB
from vrampool.visualization import plot_memory_timeline
from vrampool.visualization.palette import trial_colour
from vrampool.visualization.timeline import read_timelines

RED = "#b4233a"


def trial(number, lease_gib, measured_gib, study="digits"):
    measured = None if measured_gib is None else int(measured_gib * GIB)
    return {"study": study, "number": number, "lease_bytes": int(lease_gib * GIB), "measured_bytes": measured}


def sample(at_s, *trials, device="GPU-1", **changes):
    values = {
        "at_s": at_s,
        "device_id": device,
        "device_name": "Card",
        "total_bytes": 24 * GIB,
        "budget_bytes": 20 * GIB,
        "used_bytes": sum(trial["measured_bytes"] or 0 for trial in trials),
        "driver_reserved_bytes": GIB,
        "strangers_bytes": 0,
        "trials": list(trials),
    }
    return values | changes


def release(number, ended_at_s, state="COMPLETE", study="digits", device="GPU-1", residue_bytes=0):
    return {
        "study": study,
        "number": number,
        "device_id": device,
        "ended_at_s": ended_at_s,
        "state": state,
        "used_before_bytes": 0,
        "used_after_bytes": 0,
        "residue_bytes": residue_bytes,
        "back_s": 0.2,
    }


def colours_of(path):
    """Return the set of colours of a picture, each as three numbers between 0 and 255."""
    pixels = (imread(path)[:, :, :3] * 255).round().astype(int)
    return {tuple(colour) for colour in np.unique(pixels.reshape(-1, 3), axis=0)}


def shows(colours, colour):
    """True if a colour is in the picture, give or take the rounding of one step."""
    wanted = np.array(colour) * 255
    return any(np.abs(np.array(found) - wanted).max() <= 1 for found in colours)


def test_trials_are_stacked_on_driver_and_strangers_by_the_larger_of_lease_and_use():
    (line,) = read_timelines(
        [sample(0, trial(0, 4, 2), trial(1, 3, 5), strangers_bytes=2 * GIB), sample(1, trial(1, 3, 1))], []
    )
    first, second = line.bands
    assert first.bottom_bytes[0] == 3 * GIB
    assert second.bottom_bytes[0] == 7 * GIB, "on top of the first one's lease"
    assert second.top_bytes[0] == 12 * GIB, "measured above its lease"
    assert second.bottom_bytes[1] == GIB, "falls down when the first has ended"
    assert line.measured_bytes.tolist() == [10 * GIB, 2 * GIB]
    assert line.count.tolist() == [2, 1]


def test_a_trial_whose_use_is_unknown_still_shows_its_lease():
    (line,) = read_timelines([sample(0, trial(0, 4, None)), sample(1, trial(0, 4, 1))], [])
    assert line.bands[0].active.tolist() == [True, True]
    assert line.bands[0].top_bytes.tolist() == [5 * GIB, 5 * GIB]


def test_samples_in_any_order_give_the_same_timeline():
    samples = [sample(at_s, trial(0, 4, at_s)) for at_s in range(1, 5)]
    (forward,), (backward,) = read_timelines(samples, []), read_timelines(samples[::-1], [])
    assert np.array_equal(forward.bands[0].measured_bytes, backward.bands[0].measured_bytes)
    assert forward.edges_s.tolist() == [0, 1, 2, 3, 4], "the last sample holds as long as the others"


def test_a_worker_that_was_away_leaves_a_hole():
    """What the device held while nobody looked is not known, so the last value is not drawn on."""
    samples = [sample(at_s, trial(0, 4, 2)) for at_s in (0, 1, 2, 60, 61)]
    (line,) = read_timelines(samples, [])
    assert [(run.start, run.stop) for run in line.bands[0].runs()] == [(0, 3), (4, 6)]
    assert line.edges_s[3] == 3, "one pause after the last sample before the hole"


def test_each_device_has_its_own_timeline_and_all_share_one_clock():
    samples = [sample(100, trial(0, 4, 2)), sample(105, trial(1, 4, 2), device="GPU-2")]
    first, second = read_timelines(samples, [release(1, 106, device="GPU-2")])
    assert (first.device_id, first.edges_s[0], first.ends) == ("GPU-1", 0, ())
    assert (second.device_id, second.edges_s[0], second.ends[0].at_s) == ("GPU-2", 5, 6)


def test_the_lease_of_a_trial_alone_on_its_device_does_not_blow_up_the_scale():
    """An unknown study starts exclusive: its lease is the whole budget, while its trials may be small."""
    exclusive = sample(0, trial(0, 19, 0.5))
    shared = sample(1, trial(0, 0.75, 0.5), trial(1, 0.75, 0.5))
    (line,) = read_timelines([exclusive, shared], [])
    assert line.interesting_top_bytes == 2.5 * GIB


def test_a_label_stands_within_its_band_wherever_that_lies():
    samples = [sample(at_s, trial(0, 4, 2), trial(1, 3, 2)) for at_s in range(10)]
    samples += [sample(at_s, trial(1, 3, 2)) for at_s in range(10, 20)]
    (line,) = read_timelines(samples, [])
    assert line.label_spots(line.bands[1], 2.0, GIB) == [(5.0, 6.5 * GIB), (15.0, 2.5 * GIB)]
    assert line.label_spots(line.bands[1], 2.0, 3.5 * GIB) == [], "higher than the band"
    assert line.label_spots(line.bands[1], 21.0, GIB) == [], "longer than the band"


def test_a_trial_keeps_its_colour_and_neighbours_differ():
    assert trial_colour("digits", 7) == trial_colour("digits", 7)
    for number in range(200):
        distance = np.abs(np.subtract(trial_colour("digits", number), trial_colour("digits", number + 1))).max()
        assert distance > 0.15, number
        assert all(0 <= part <= 1 for part in trial_colour("digits", number))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture_is_written_where_asked_in_the_format_of_its_name(tmp_path, suffix):
    path = plot_memory_timeline([sample(0, trial(0, 4, 2))], [], tmp_path / "new" / f"memory{suffix}")
    head = path.read_bytes()[:8]
    assert head.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")


def test_the_picture_shows_every_trial(tmp_path):
    samples = [sample(at_s, *(trial(number, 1.5, 1) for number in range(12))) for at_s in range(30)]
    colours = colours_of(plot_memory_timeline(samples, [], tmp_path / "memory.png"))
    assert [number for number in range(12) if not shows(colours, trial_colour("digits", number))] == []


def test_each_trial_that_left_memory_behind_is_ringed_in_red(tmp_path):
    samples = [sample(at_s, trial(0, 1.5, 1), trial(1, 1.5, 1)) for at_s in range(30)]

    def red_pixels(*residues):
        ends = [release(number, 10 + number, residue_bytes=residue) for number, residue in enumerate(residues)]
        pixels = imread(plot_memory_timeline(samples, ends, tmp_path / "memory.png"))[:, :, :3]
        return int((np.abs(pixels - to_rgb(RED)).max(axis=2) < 0.02).sum())

    none, one, both = red_pixels(0, 0), red_pixels(300 * MIB, 0), red_pixels(300 * MIB, 300 * MIB)
    assert none < one < both


def test_many_trials_on_several_devices_and_studies_are_drawn(tmp_path):
    samples, releases = [], []
    for device in ("GPU-1", "GPU-2", "GPU-3"):
        for at_s in range(200):
            running = [
                trial(number, 2, 1, study) for number in range(at_s // 10, at_s // 10 + 5) for study in ("a", "b")
            ]
            samples.append(sample(at_s, *running, device=device))
        releases += [release(number, number * 10 + 10, study="a", device=device) for number in range(20)]
    picture = imread(plot_memory_timeline(samples, releases, tmp_path / "many.png"))
    assert picture.shape[0] > picture.shape[1] * 0.6, "a row for each device"


def test_devices_that_tell_little_are_drawn_all_the_same(tmp_path):
    """NVML may hide the memory in use; a pool may have run nothing yet; a trial may end between two samples."""
    samples = [sample(0, used_bytes=None, driver_reserved_bytes=None, strangers_bytes=None)]
    assert plot_memory_timeline(samples, [release(3, 0.5, "WAITING")], tmp_path / "idle.png").exists()


def test_without_samples_the_error_says_that_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(InputError, match="nothing to draw"):
        plot_memory_timeline([], [release(0, 1)], tmp_path / "memory.png")


def test_without_matplotlib_the_error_names_the_extra(tmp_path):
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from vrampool.errors import InputError\n"
        "from vrampool.visualization import plot_memory_timeline\n"
        "sample = {'at_s': 0, 'device_id': 'cpu', 'device_name': 'cpu', 'total_bytes': 1, 'budget_bytes': 1}\n"
        "try: plot_memory_timeline([sample], [], 'memory.png')\n"
        "except InputError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "pip install 'vrampool[viz]'" in done.stdout
    assert list(tmp_path.iterdir()) == []
