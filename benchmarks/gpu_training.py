"""Measures what the helpers of `vrampool.training` save on a card. Prints one JSON line for each fact.

    PYTHONPATH=pool python benchmarks/gpu_training.py --out training.jsonl
    python benchmarks/training_tables.py training.jsonl
    PYTHONPATH=pool python benchmarks/gpu_training.py --dry        # tiny, on the CPU: shows only that it runs

Needs torch, torchvision and accelerate; nvidia-ml-py for the device's own figures. Each measurement runs in a fresh
process and is repeated (`--repeats`). Nothing else should use the card.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training_models import Facts, device_used, images, make_network, peaks

TRIALS = 12  # of the residue measurement, as in the article's case
Case = Callable[[bool, str], Facts]  # of (dry, device)


def backward(loss: Any) -> None:
    loss.backward()


@dataclass(frozen=True)
class Training:
    """Optimizer steps of ResNet-50 with an effective batch, in equal pieces."""

    effective: int
    pieces: int = 1
    dtype: str = "float32"
    benchmark: bool = False
    steps: int = 6

    def run(self, dry: bool, device: str) -> Facts:
        """Return peaks, the bytes that one piece's forward pass leaves for its backward pass, and seconds a step."""
        import torch

        from vrampool import training

        training.apply_settings(cudnn_benchmark=self.benchmark, expandable_segments=False)
        network = make_network(dry, device)
        optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
        dtype: Any = self.dtype
        precision = training.mixed_precision(dtype, device=device, on_nonfinite="ignore")
        accumulator = training.GradientAccumulator(optimizer, self.pieces, precision=precision)
        x, y = images(self.effective // self.pieces // (16 if dry else 1), 32 if dry else 224, device)
        seconds, activations = [], 0
        for _ in range(2 if dry else self.steps):
            started = time.perf_counter()
            for _ in range(self.pieces):
                inputs, classes = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
                before = torch.cuda.memory_allocated() if device == "cuda" else 0
                with precision.autocast():
                    loss = torch.nn.functional.cross_entropy(network(inputs), classes)
                if device == "cuda":
                    activations = torch.cuda.memory_allocated() - before
                accumulator.backward(loss, len(inputs))
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        times = {"first_step_s": seconds[0], "step_s": statistics.median(seconds[1:])}
        return {**peaks(device), "activations_bytes": activations, **times}


# --- the measurements ------------------------------------------------------------------------------------------------


def batch_pieces() -> dict[str, Case]:
    """Batch 256 against 4 pieces of 64, and other cuts. Article: 60 to 75 % less."""
    return {f"{256 // pieces} x {pieces}": Training(256, pieces).run for pieces in (1, 2, 4, 8)}


def mixed_precision() -> dict[str, Case]:
    """Autocast against float32, alone and with pieces. Article: about half of the activations."""
    return {
        f"{dtype}, {256 // pieces} x {pieces}": Training(256, pieces, dtype).run
        for pieces in (1, 4)
        for dtype in ("float32", "bfloat16", "float16")
    }


def cudnn_benchmark() -> dict[str, Case]:
    """cuDNN's benchmark mode off and on, batch 128. Article: off during a search."""
    return {
        f"benchmark {'on' if on else 'off'}, {dtype}": Training(128, 1, dtype, benchmark=on, steps=10).run
        for dtype in ("float32", "bfloat16")
        for on in (False, True)
    }


def vary_sizes(dry: bool, device: str, *, expandable: str, varied: bool) -> Facts:
    """Train 20 steps, of varied batch and image sizes if asked for; `expandable`: "off", "environment" or "call"."""
    if expandable == "environment":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # torch is not imported yet
    import torch

    from vrampool import training

    applied = training.apply_settings(expandable_segments=expandable == "call")
    network = make_network(dry, device)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    chosen = random.Random(1)
    largest = 8 if dry else 128
    for _ in range(3 if dry else 20):
        batch = chosen.randint(largest // 4, largest) if varied else largest
        size = 32 if dry else (chosen.choice([160, 192, 224]) if varied else 224)
        x, y = images(batch, size, device)
        backward(torch.nn.functional.cross_entropy(network(x.to(device)), y.to(device)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {**peaks(device), "applied_by_call": applied.expandable_segments}


def expandable_segments() -> dict[str, Case]:
    """Expandable segments off, on by environment and by `apply_settings`, sizes fixed or varied. Article: on."""
    return {
        f"{expandable}, {'varied' if varied else 'fixed'} sizes": functools.partial(
            vary_sizes, expandable=expandable, varied=varied
        )
        for varied in (False, True)
        for expandable in ("off", "environment", "call")
    }


def make_transformer(width: int, layers: int) -> Any:
    """Return encoder layers one after the other; 24 of width 2048 are 4.8 GB."""
    import torch

    one = functools.partial(torch.nn.TransformerEncoderLayer, width, 16, 4 * width, batch_first=True)
    return torch.nn.Sequential(*(one() for _ in range(layers))).eval()


def infer_offloaded(dry: bool, device: str, *, share: float | None) -> Facts:
    """Run three batches through a transformer with a share of its weights on the device; None: plainly, all of it."""
    import torch

    from vrampool import training

    width, layers = (64, 4) if dry else (2048, 24)
    model = make_transformer(width, layers)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    if share is None:
        model = model.to(device)
    else:
        # accelerate keeps room for one layer free on the device.
        limits: dict[int | str, int | str] = {0 if device == "cuda" else "cpu": int(weights * (share + 1 / layers))}
        if device == "cuda":
            limits["cpu"] = 4 * weights
        model = training.load_offloaded(model, max_memory=limits, no_split=["TransformerEncoderLayer"])
    hidden = torch.randn(8, 16 if dry else 512, width).to(device)
    seconds = []
    with torch.inference_mode():
        for _ in range(3):
            started = time.perf_counter()
            model(hidden)
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    return {**peaks(device), "weights_bytes": weights, "step_s": min(seconds)}


def offload() -> dict[str, Case]:
    """A transformer of 4.8 GB on the card, and with half or none of its weights there; a step is one inference."""
    shares = {"on the device": None, "half offloaded": 0.5, "all offloaded": 0.0}
    return {case: functools.partial(infer_offloaded, share=share) for case, share in shares.items()}


def one_trial(seed: int, dry: bool, device: str, benchmark: bool) -> Facts:
    """Train a few steps of a batch and image size drawn by `seed`; return the peaks."""
    import torch

    torch.backends.cudnn.benchmark = benchmark
    chosen = random.Random(seed)
    batch = chosen.choice([2, 4, 8] if dry else [16, 32, 64, 96, 128, 192, 256])
    size = chosen.choice([32] if dry else [160, 192, 224])
    network = make_network(dry, device)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    x, y = images(batch, size, device)
    for _ in range(4):
        optimizer.zero_grad()
        backward(torch.nn.functional.cross_entropy(network(x.to(device)), y.to(device)))
        optimizer.step()
    return peaks(device)


def residue_in_process(dry: bool, device: str, *, benchmark: bool, clean: str) -> Facts:
    """Run the trials one after the other in this process; return what stays on the card after each."""
    import torch

    from vrampool import training

    baseline = device_used()
    left, cached = [], []
    for seed in range(3 if dry else TRIALS):
        one_trial(seed, dry, device, benchmark)
        if clean == "gc":
            gc.collect()
        elif clean == "release":
            training.release()
        used = device_used()
        left.append(None if used is None or baseline is None else used - baseline)
        cached.append(torch.cuda.memory_reserved() if device == "cuda" else 0)
    return {"left_bytes": left, "reserved_bytes": cached}


def residue() -> dict[str, Case]:
    """What stays on the card after each of 12 mixed trials in one process. Article: 300 to 600 MB and the cache."""
    ways = ((True, ""), (False, ""), (False, "gc"), (False, "release"))
    return {
        f"one process, benchmark {'on' if on else 'off'}, {clean or 'no clean-up'}": functools.partial(
            residue_in_process, benchmark=on, clean=clean
        )
        for on, clean in ways
    }


MEASUREMENTS: dict[str, Callable[[], dict[str, Case]]] = {
    measurement.__name__: measurement
    for measurement in (batch_pieces, mixed_precision, cudnn_benchmark, expandable_segments, offload, residue)
}


# --- running them ----------------------------------------------------------------------------------------------------


def _child(pipe: Any, name: str, case: str, dry: bool, device: str) -> None:
    if name == "fresh":
        pipe.send(one_trial(int(case), dry, device, False))
        return
    try:
        facts = MEASUREMENTS[name]()[case](dry, device)
    except Exception as error:  # an out-of-memory error of one case is a fact too
        facts = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    pipe.send(facts)


class _Here:
    """Stands in for the pipe in a dry run."""

    def send(self, facts: Facts) -> None:
        self.facts = facts


def in_fresh_process(name: str, case: str, dry: bool, device: str) -> Facts:
    """Run one case in a spawned process and wait for its end; in a dry run, which measures nothing, in this one."""
    if dry:
        here = _Here()
        _child(here, name, case, dry, device)
        return here.facts
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, name, case, dry, device))
    process.start()
    theirs.close()
    try:
        facts: Facts = ours.recv()
    except EOFError:
        facts = {"error": "the process ended without a result"}
    process.join()
    return facts


def fresh_children(dry: bool, device: str) -> Facts:
    """Run the residue's trials each in a process of its own; return what stays on the card after each."""
    baseline = device_used()
    left, peaks_seen = [], []
    for seed in range(3 if dry else TRIALS):
        facts = in_fresh_process("fresh", str(seed), dry, device)
        used = device_used()
        left.append(None if used is None or baseline is None else used - baseline)
        peaks_seen.append(facts.get("max_torch_reserved_bytes"))
    return {"left_bytes": left, "reserved_bytes": [0] * len(left), "max_torch_reserved_bytes": peaks_seen}


def measure(chosen: list[str], dry: bool, device: str, repeats: int, emit: Callable[[Facts], None]) -> None:
    """Run the chosen measurements; repeats are interleaved, so that a drift of the machine meets all cases alike."""
    for name in chosen:
        for repeat in range(repeats):
            for case in MEASUREMENTS[name]():
                started = time.perf_counter()
                facts = in_fresh_process(name, case, dry, device)
                took = {"repeat": repeat, "wall_s": round(time.perf_counter() - started, 2)}
                emit({"measurement": name, "case": case, **took, **facts})
            if name == "residue":
                facts = fresh_children(dry, device)
                emit({"measurement": name, "case": "a fresh process each", "repeat": repeat, **facts})


def describe(device: str) -> Facts:
    """Return what the figures were measured on."""
    import torch

    facts: Facts = {"measurement": "machine", "torch": torch.__version__, "python": sys.version.split()[0]}
    if device == "cuda":
        # NVML and not torch: this process must hold no context while the others are measured.
        try:
            nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
            facts["device"] = str(nvml.nvmlDeviceGetName(handle))
            facts["driver"] = str(nvml.nvmlSystemGetDriverVersion())
            facts["total_bytes"] = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except Exception as error:
            facts["nvml"] = str(error)
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="names with commas: %(default)s")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append the JSON lines to this file too")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU: shows only that it runs")
    args = parser.parse_args()
    import torch

    if not args.dry and not torch.cuda.is_available():
        parser.error("there is no GPU; --dry tries the program on the CPU")
    chosen = [name for name in args.only.split(",") if name]
    unknown = set(chosen) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    # A setting of the environment would decide what the cases with and without expandable segments compare.
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        os.environ.pop(name, None)
    device = "cpu" if args.dry else "cuda"
    rows: list[Facts] = []

    def emit(facts: Facts) -> None:
        line = json.dumps(facts)
        print(line, flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(line + "\n")
        rows.append(facts)

    emit({**describe(device), "about": {name: MEASUREMENTS[name].__doc__ for name in chosen}})
    measure(chosen, args.dry, device, 1 if args.dry else args.repeats, emit)
    # On a card a case that runs out of memory is a finding; tiny sizes on the CPU must all run.
    return 1 if args.dry and any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
