"""On a card: does the memory come back, does the cap hold, is anybody a victim? And traces of peaks for later tests.

`python -m benchmarks.gpu_pool --out DIR` runs four families of models through one pool while a ballast process holds
the rest of the card, so that out-of-memory errors are the driver's own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pynvml

import vrampool
from vrampool.local.embedded import EmbeddedValkey
from vrampool.queueing import History
from vrampool.settings import load_settings
from vrampool.signing import load_secret
from vrampool.storage import open_storage
from vrampool.units import GIB, MIB

OBJECTIVES = Path(__file__).with_name("gpu_objectives.py")
FAMILIES = ("mlp", "cnn", "resnet", "transformer")
_BALLAST = """
import sys, torch
keep = int(sys.argv[1])
free, total = torch.cuda.mem_get_info()
block = torch.empty(max(free - keep, 0), dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
print(block.numel(), flush=True)
sys.stdin.read()
"""


class Ballast:
    """A process that really holds all of the card but `keep_bytes`."""

    def __init__(self, keep_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BALLAST, str(keep_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.held_bytes = int(self._process.stdout.readline())
        pynvml.nvmlInit()
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0), version=pynvml.nvmlMemory_v2)
        self.used_bytes = int(memory.used)  #: on the device, its context included
        self.pid = self._process.pid

    def close(self) -> None:
        self._process.communicate()


#: Settings of a card's pool where none are given.
_SETTINGS: dict[str, Any] = {"spares": 8, "max_trials": 14, "sample_s": 0.25}


@contextmanager
def card_pool(state: Path, card_bytes: int | None, ballast_bytes: int, **given: Any) -> Iterator[vrampool.Pool]:
    """A pool on GPU 0, which counts as a card of `card_bytes`: the ballast holds the rest; None: the whole card.

    Further arguments are settings of the pool.
    """
    options = _SETTINGS | given
    if card_bytes is None:
        with vrampool.Pool(state_dir=state, gpu="0", **options) as pool:
            yield pool
        return
    state.mkdir(parents=True)
    with EmbeddedValkey(state / "valkey") as valkey:
        storage = f"sqlite:///{state / 'study.db'}"
        settings = load_settings({"redis": valkey.url, "storage": storage, "state_dir": state} | options)
        load_secret(settings, create=True)
        open_storage(storage, create_schema=True).close()
        env = dict(os.environ) | settings.to_env()
        shrunken = [sys.executable, "-m", "benchmarks.small_card", str(card_bytes), str(ballast_bytes)]
        with (state / "worker.log").open("wb") as log:
            processes = [
                subprocess.Popen([sys.executable, "-m", "vrampool", "coordinator"], env=env, stderr=log),
                subprocess.Popen(shrunken, env=env, stderr=log),
            ]
        try:
            with vrampool.Pool(redis=valkey.url, storage=storage, state_dir=state) as pool:
                yield pool
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(60)


def run(out: Path, trials: int, card_gib: float | None, families: list[str]) -> dict[str, Any]:
    """Run the families one after another in one pool; write traces; return the figures."""
    card_bytes = int(card_gib * GIB) if card_gib else None
    ballast = Ballast(card_bytes) if card_bytes else None
    figures: dict[str, Any] = {"card_gib": card_gib, "families": {}}
    try:
        with card_pool(out / "state", card_bytes, ballast.used_bytes if ballast else 0) as pool:
            for family in families:
                figures["families"][family] = _family(pool, family, trials, out)
            figures |= _memory(pool)
    finally:
        if ballast is not None:
            ballast.close()
    return figures


def _family(pool: vrampool.Pool, family: str, trials: int, out: Path) -> dict[str, Any]:
    started = time.monotonic()
    sampler = optuna.samplers.RandomSampler(seed=1)
    handle = pool.submit(f"{OBJECTIVES}:{family}", n_trials=trials, study_name=family, sampler=sampler).wait()
    wall_s = time.monotonic() - started
    attempts = [trial for trial in handle.trials if "vrampool:attempt" in trial.user_attrs]
    with (out / f"{family}.jsonl").open("w") as file:
        for trial in attempts:
            facts = trial.user_attrs["vrampool:attempt"]
            kept = ("end", "verdict", "request_bytes", "lease_bytes", "peak_bytes", "max_torch_reserved_bytes")
            kept += ("max_allocated_bytes", "overhead_bytes", "asked_bytes", "num_ooms", "num_alloc_retries", "run_s")
            row = {"number": trial.number, "params": trial.params} | {name: facts.get(name) for name in kept}
            file.write(json.dumps(row) + "\n")
    ends = Counter(trial.user_attrs["vrampool:attempt"]["end"] for trial in attempts)
    verdicts = Counter(trial.user_attrs["vrampool:attempt"].get("verdict") for trial in attempts)
    verdicts.pop(None, None)
    progress = handle.progress()
    return {
        "roots": progress.finished,
        "states": progress.counts,
        "attempts": len(attempts),
        "ends": dict(ends),
        "verdicts": dict(verdicts),
        "wall_s": round(wall_s, 1),
        "peak_gib": round(max((t.user_attrs["vrampool:attempt"].get("peak_bytes") or 0) for t in attempts) / GIB, 2),
    }


def _memory(pool: vrampool.Pool) -> dict[str, Any]:
    history = History(pool.connection, pool.settings.pool)
    releases = history.releases()
    over: list[int] = []
    at_once = 0
    for device in pool.devices():
        for sample in history.samples(device.device_id):
            at_once = max(at_once, len(sample["trials"]))
            over += [
                trial["measured_bytes"] - trial["lease_bytes"] for trial in sample["trials"] if trial["measured_bytes"]
            ]
    residues = [item["residue_bytes"] or 0 for item in releases]
    return {
        "children": len(releases),
        "residue_max_mib": round(max(residues, default=0) / MIB, 1),
        "residue_over_noise": sum(item > 16 * MIB for item in residues),
        "back_s_max": max((item["back_s"] for item in releases), default=None),
        "over_lease_max_mib": round(max(over, default=0) / MIB, 1),
        "samples": len(over),
        "at_once": at_once,
    }


def main() -> int:
    """Run and print; files go to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=100, help="root trials of each family")
    parser.add_argument("--card", type=float, default=24.0, help="GiB of the card that are left free; 0: all")
    parser.add_argument("--families", default=",".join(FAMILIES))
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    arguments.out.mkdir(parents=True, exist_ok=True)
    figures = run(arguments.out.resolve(), arguments.trials, arguments.card or None, arguments.families.split(","))
    (arguments.out / "figures.json").write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
