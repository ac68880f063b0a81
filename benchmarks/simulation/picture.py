"""The curves of docs/scale.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.simulation.pool import Outcome

#: Turns that created trials are summed up in so many portions of a run.
_PORTIONS = 20


def cost_by_size(outcome: Outcome) -> list[tuple[float, float]]:
    """Return (trials in the study, CPU milliseconds of the coordinator for each trial that it creates)."""
    turns = [turn for turn in outcome.turns if turn.woken]
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


def draw(by_size: Sequence[Outcome], by_devices: Sequence[Outcome], by_load: Sequence[Outcome], path: Path) -> None:
    """Draw what a trial costs over study size and devices, and where devices begin to wait."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for outcome in by_size:
        points = cost_by_size(outcome)
        size = outcome.size
        name = f"{size.sampler}, {size.devices} devices" + (f", {size.past} trials before" if size.past else "")
        left.plot(*zip(*points, strict=True), marker=".", label=name)
    left.set(xlabel="trials in the study", ylabel="coordinator's CPU, ms per trial")
    left.set_ylim(bottom=0)
    left.legend(fontsize=8)
    devices = [outcome.size.devices for outcome in by_devices]
    middle.plot(devices, [outcome.cpu_per_trial_s * 1000 for outcome in by_devices], marker="o", label="coordinator")
    server = [outcome.server_s / outcome.ended * 1000 for outcome in by_devices]
    middle.plot(devices, server, marker="s", label="Valkey")
    middle.set(xscale="log", xlabel="devices", ylabel="CPU, ms per trial")
    middle.set_ylim(bottom=0)
    middle.legend(fontsize=8)
    wanted = [outcome.size.wanted_per_s for outcome in by_load]
    right.plot(wanted, wanted, color="0.7", linestyle="--", label="all devices busy")
    right.plot(wanted, [outcome.per_s for outcome in by_load], marker="o", label="simulated")
    right.set(xlabel="trials per second that the devices could run", ylabel="trials per second that they ran")
    right.set(xscale="log", yscale="log")
    right.legend(fontsize=8)
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)
