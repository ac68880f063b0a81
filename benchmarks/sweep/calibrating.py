"""Measure trials alone on the whole card, one after another in one process: peak, time of a step, multiprocessors.

`python -m benchmarks.sweep.calibrating FILE ID...` adds to what the file has.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sweep.ending import end_with_parent
from benchmarks.sweep.trials import Trial, all_trials
from benchmarks.sweep.watching import Card
from vrampool.units import GIB

#: Steps before the clock starts, and about so many seconds on it.
_WARM_UP, _TIMED_S = 3, 0.4
Facts = dict[str, Any]


def read(file: Path) -> dict[int, Facts]:
    """Return what was measured so far, by the trial's id: `need_gib`, `ms`, `sm_util`, or `error`."""
    if not file.exists():
        return {}
    return {int(key): value for key, value in json.loads(file.read_text()).items()}


def estimates(trials: Sequence[Trial]) -> dict[int, Facts]:
    """Return what the table says, in the form of what is measured: for a dry run."""
    return {trial.id: {"need_gib": trial.gib, "ms": trial.ms, "sm_util": None} for trial in trials}


def calibrate(file: Path, trials: list[Trial]) -> None:
    """Measure the trials and add them to the file."""
    import torch

    card = Card()
    before_gib = card.used_gib()
    torch.zeros(1, device="cuda")
    found: dict[int, Facts] = {}
    for trial in trials:
        found[trial.id] = _measure(trial, card)
    _empty(torch)
    # What the device holds of this process beyond torch's allocator is the same for all models that use its libraries.
    overhead_gib = card.used_gib() - before_gib - torch.cuda.memory_reserved() / GIB
    for facts in found.values():
        facts["need_gib"] = round(facts["reserved_gib"] + overhead_gib, 3)
        facts["overhead_gib"] = round(overhead_gib, 3)
    file.write_text(json.dumps(read(file) | found, indent=1))


def _measure(trial: Trial, card: Card) -> Facts:
    import torch

    from benchmarks.sweep.training import Training

    _empty(torch)
    torch.cuda.reset_peak_memory_stats()
    facts: Facts = {"model": trial.kind, "shape": trial.shape, "amp": trial.amp, "ms": trial.ms, "sm_util": None}
    try:
        training = Training(trial, "cuda")
        for _ in range(_WARM_UP):
            training.step()
        torch.cuda.synchronize()
        began_s = time.monotonic()
        training.step()
        torch.cuda.synchronize()
        count = min(200, max(2, int(_TIMED_S / (time.monotonic() - began_s))))
        card.sm_util()
        began_s = time.monotonic()
        for _ in range(count):
            training.step()
        torch.cuda.synchronize()
        facts["ms"] = round((time.monotonic() - began_s) * 1000 / count, 3)
        facts["sm_util"] = card.sm_util()
    except Exception as error:  # one that cannot be measured keeps its estimated time; the others go on
        facts["error"] = f"{type(error).__name__}: {error}"[:300]
    facts["reserved_gib"] = round(torch.cuda.max_memory_reserved() / GIB, 3)
    return facts


def _empty(torch: Any) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    with contextlib.suppress(AttributeError):  # cuBLAS's workspace of the trial before is not this one's
        torch._C._cuda_clearCublasWorkspaces()


def main() -> None:
    end_with_parent()
    chosen = {int(word) for word in sys.argv[2:]}
    calibrate(Path(sys.argv[1]), [trial for trial in all_trials() if trial.id in chosen])


if __name__ == "__main__":
    main()
