"""The curves of docs/scale.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.simulation.outcome import Outcome

#: Turns that created trials are summed up in so many portions of a run.
_PORTIONS = 20


def cost_by_size(outcome: Outcome) -> list[tuple[float, float]]:
    """Return (trials in the study, CPU milliseconds of the coordinator for each trial that it creates)."""
    turns = outcome.steady_turns
    created = sum(turn.created for turn in turns)
    points: list[tuple[float, float]] = []
    cpu_s, count, weighted = 0.0, 0, 0.0
    for turn in turns:
        cpu_s, count = cpu_s + turn.cpu_s, count + turn.created
        weighted += turn.trials * turn.created
        if count >= max(1, created // _PORTIONS):
            points.append((weighted / count, cpu_s / count * 1000))
            cpu_s, count, weighted = 0.0, 0, 0.0
    return points


def draw(found: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw what a trial costs over study size and devices, and where devices begin to wait.

    Args:
        found: By part of the run, what `simulate.to_json` says of each pool.
        path: A PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    by_size = found.get("study size", [])
    for sampler in dict.fromkeys(item["size"]["sampler"] for item in by_size):
        runs = [item for item in by_size if item["size"]["sampler"] == sampler]
        points = sorted((item["size"]["past"] + item["ended"], item["cpu_per_trial_s"] * 1000) for item in runs)
        left.plot(*zip(*points, strict=True), marker="o", label=f"30 devices, {sampler} sampler")
    for item in found.get("whole study", []):
        left.plot(*zip(*item["cost_by_size"], strict=True), label=f"{item['size']['devices']} devices, random sampler")
    left.set(xlabel="trials in the study", ylabel="coordinator's CPU, ms per trial")
    _show(left)
    by_devices = found.get("devices", [])
    devices = [item["size"]["devices"] for item in by_devices]
    if earlier := found.get("devices before", []):
        points = [(item["size"]["devices"], item["server_s"] / item["ended"] * 1000) for item in earlier]
        middle.plot(*zip(*points, strict=True), marker="s", color="0.6", linestyle="--", label="Valkey, all hear all")
    middle.plot(devices, [item["cpu_per_trial_s"] * 1000 for item in by_devices], marker="o", label="coordinator")
    middle.plot(devices, [item["server_s"] / item["ended"] * 1000 for item in by_devices], marker="s", label="Valkey")
    middle.set(xscale="log", xlabel="devices", ylabel="CPU, ms per trial", title="5 trials/s")
    _show(middle)
    loads = {"30 devices": found.get("load", []), "1 000 devices": found.get("load of 1 000", [])}
    most = 0.0
    for label, by_load in loads.items():
        # What the coordinator is asked for: simulated trials are somewhat shorter or longer than they were to be.
        wanted = [item["ran_per_s"] / item["busy"] for item in by_load]
        most = max(most, *wanted, 0.0)
        right.plot(wanted, [item["ran_per_s"] for item in by_load], marker="o", label=label)
    right.plot([0, most], [0, most], color="0.7", linestyle="--", label="all devices busy")
    right.set(xlabel="trials/s that the devices could run", ylabel="trials/s that they ran")
    _show(right)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _show(axes: Any) -> None:
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
