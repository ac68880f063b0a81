"""Measures what the helpers of `vrampool.training` save on a card. Prints one JSON line for each fact, then tables.

    PYTHONPATH=pool python benchmarks/gpu_training.py --out training.jsonl
    PYTHONPATH=pool python benchmarks/gpu_training.py --dry        # tiny, on the CPU: shows only that it runs

Needs torch, torchvision and accelerate; nvidia-ml-py for the device's own figures. Each measurement runs in a fresh
process, and is repeated (`--repeats`); tables show medians with the range. Nothing else should use the card.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 2**20
TRIALS = 12  # of the residue measurement, as in the article's case
Facts = dict[str, Any]


# --- what is trained -------------------------------------------------------------------------------------------------


def make_network(dry: bool, device: str) -> Any:
    """Return a ResNet-50; in a dry run a few convolutions, for which torchvision is not needed."""
    import torch

    torch.manual_seed(0)
    if dry:
        layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        )
        return torch.nn.Sequential(layers, torch.nn.Linear(8, 100)).to(device)
    import torchvision

    return torchvision.models.resnet50(num_classes=100).to(device)


def images(batch: int, size: int, device: str) -> tuple[Any, Any]:
    """Return random images of shape (batch, 3, size, size) and their classes, on the host as a data loader gives them."""
    import torch

    generator = torch.Generator().manual_seed(batch)
    x = torch.randn(batch, 3, size, size, generator=generator)
    y = torch.randint(0, 100, (batch,), generator=generator)
    return (x.pin_memory(), y.pin_memory()) if device == "cuda" else (x, y)


def device_used() -> int | None:
    """Return the bytes in use on the card as NVML tells, or None without it. Creates no context."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except Exception:
        return None


def peaks(device: str) -> Facts:
    """Return the allocator's peaks of this process in bytes, and what the card shows now."""
    import torch

    if device != "cuda":
        return {"max_allocated_bytes": 0, "max_torch_reserved_bytes": 0, "device_used_bytes": None}
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "max_allocated_bytes": torch.cuda.max_memory_allocated(),
        "max_torch_reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_used_bytes": device_used(),
        "num_alloc_retries": stats.get("num_alloc_retries", 0),
    }


def train(
    dry: bool, device: str, *, effective: int, physical: int, size: int, steps: int, dtype: str, benchmark: bool
) -> Facts:
    """Train `steps` optimizer steps of the effective batch in pieces; return peaks and seconds for each step."""
    import torch

    from vrampool import training

    training.apply_settings(cudnn_benchmark=benchmark, expandable_segments=False)
    network = make_network(dry, device)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    precision = training.mixed_precision(dtype, device=device, on_nonfinite="ignore")  # type: ignore[arg-type]
    accumulator = training.GradientAccumulator(optimizer, effective // physical, precision=precision)
    x, y = images(physical, size, device)
    # Weights, their gradients and the optimizer's state: what is no activation. The batch is counted to the activations.
    fixed_bytes = 3 * sum(p.numel() * p.element_size() for p in network.parameters())
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        for _ in range(effective // physical):
            inputs, classes = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with precision.autocast():
                loss = torch.nn.functional.cross_entropy(network(inputs), classes)
            accumulator.backward(loss, len(inputs))
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    facts = peaks(device)
    return {
        **facts,
        "fixed_bytes": fixed_bytes,
        "activations_bytes": max(0, facts["max_allocated_bytes"] - fixed_bytes),
        "first_step_s": seconds[0],
        "step_s": statistics.median(seconds[1:]) if len(seconds) > 1 else seconds[0],
    }


# --- the measurements ------------------------------------------------------------------------------------------------


def batch_pieces(dry: bool, device: str) -> dict[str, Callable[[], Facts]]:
    """Batch 256 against 4 pieces of 64, and smaller ones. Article: 60 to 75 % less."""
    effective, size = (16, 32) if dry else (256, 224)
    common = {"effective": effective, "size": size, "steps": 2 if dry else 5, "dtype": "float32", "benchmark": False}
    return {
        f"{effective // pieces} x {pieces}": lambda pieces=pieces: train(
            dry, device, physical=effective // pieces, **common
        )
        for pieces in (1, 2, 4, 8)
    }


def mixed(dry: bool, device: str) -> dict[str, Callable[[], Facts]]:
    """Autocast against float32, alone and with pieces. Article: about half of the activations."""
    effective, size = (16, 32) if dry else (256, 224)
    common = {"effective": effective, "size": size, "steps": 2 if dry else 8, "benchmark": False}
    return {
        f"{dtype}, {effective // pieces} x {pieces}": lambda dtype=dtype, pieces=pieces: train(
            dry, device, physical=effective // pieces, dtype=dtype, **common
        )
        for pieces in (1, 4)
        for dtype in ("float32", "bfloat16", "float16")
    }


def cudnn_benchmark(dry: bool, device: str) -> dict[str, Callable[[], Facts]]:
    """cuDNN's benchmark mode on and off. Article: off during a search."""
    effective, size = (8, 32) if dry else (128, 224)
    common = {"effective": effective, "physical": effective, "size": size, "steps": 3 if dry else 10}
    return {
        f"benchmark {'on' if on else 'off'}, {dtype}": lambda on=on, dtype=dtype: train(
            dry, device, benchmark=on, dtype=dtype, **common
        )
        for dtype in ("float32", "bfloat16")
        for on in (False, True)
    }


def segments(dry: bool, device: str) -> dict[str, Callable[[], Facts]]:
    """Expandable segments on and off, at one size and where sizes vary from step to step. Article: on."""

    def run(expandable: bool, varied: bool) -> Facts:
        import torch

        from vrampool import training

        applied = training.apply_settings(expandable_segments=expandable)
        network = make_network(dry, device)
        optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
        chosen = random.Random(1)
        largest = 8 if dry else 128
        for _ in range(3 if dry else 20):
            batch = chosen.randint(largest // 4, largest) if varied else largest
            size = chosen.choice([32] if dry else [160, 192, 224]) if varied else (32 if dry else 224)
            x, y = images(batch, size, device)
            torch.nn.functional.cross_entropy(network(x.to(device)), y.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {**peaks(device), "expandable_applied": applied.expandable_segments}

    return {
        f"expandable {'on' if on else 'off'}, {'varied' if varied else 'fixed'} sizes": lambda on=on, varied=varied: (
            run(on, varied)
        )
        for varied in (False, True)
        for on in (False, True)
    }


def offload(dry: bool, device: str) -> dict[str, Callable[[], Facts]]:
    """A transformer on the card, and with half or none of its weights there. Inference on one batch."""

    def run(share: float | None) -> Facts:
        import torch

        from vrampool import training

        width, layers = (64, 4) if dry else (2048, 24)

        class Transformer(torch.nn.Module):
            _no_split_modules = ("TransformerEncoderLayer",)

            def __init__(self) -> None:
                super().__init__()
                self.layers = torch.nn.ModuleList(
                    torch.nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True) for _ in range(layers)
                )

            def forward(self, hidden: Any) -> Any:
                for layer in self.layers:
                    hidden = layer(hidden)
                return hidden

        model = Transformer().eval()
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        if share is None:
            model = model.to(device)
        else:
            # Room for one layer stays free on the device, as accelerate counts it.
            limit = int(weights * share) + weights // layers
            target: int | str = 0 if device == "cuda" else "cpu"
            host = {} if device == "cpu" else {"cpu": 4 * weights}
            model = training.load_offloaded(model, max_memory={target: limit, **host})
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

    return {
        "on the device": lambda: run(None),
        "half offloaded": lambda: run(0.5),
        "all but one layer offloaded": lambda: run(0.0),
    }


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
        torch.nn.functional.cross_entropy(network(x.to(device)), y.to(device)).backward()
        optimizer.step()
    return peaks(device)


def residue_in_process(dry: bool, device: str, *, benchmark: bool, clean: str) -> Facts:
    """Run the trials one after the other in this process; return what stays on the card after each."""
    import torch

    from vrampool import training

    baseline = device_used()
    left, cached = [], []
    for seed in range(3 if dry else TRIALS):
        if device == "cuda" and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        one_trial(seed, dry, device, benchmark)
        if clean == "gc":
            gc.collect()
        elif clean == "release":
            training.release()
        used = device_used()
        left.append(None if used is None or baseline is None else used - baseline)
        cached.append(torch.cuda.memory_reserved() if device == "cuda" else 0)
    return {"left_bytes": left, "reserved_bytes": cached}


def residue(dry: bool, device: str) -> dict[str, Callable[[], Facts]]:
    """What stays on the card after each of 12 mixed trials in one process. Article: 300 to 600 MB and the cache."""
    return {
        "one process, benchmark on, no clean-up": lambda: residue_in_process(dry, device, benchmark=True, clean=""),
        "one process, benchmark off, no clean-up": lambda: residue_in_process(dry, device, benchmark=False, clean=""),
        "one process, benchmark off, gc alone": lambda: residue_in_process(dry, device, benchmark=False, clean="gc"),
        "one process, benchmark off, release()": lambda: residue_in_process(
            dry, device, benchmark=False, clean="release"
        ),
    }


MEASUREMENTS: dict[str, Callable[[bool, str], dict[str, Callable[[], Facts]]]] = {
    "batch_pieces": batch_pieces,
    "mixed_precision": mixed,
    "cudnn_benchmark": cudnn_benchmark,
    "expandable_segments": segments,
    "offload": offload,
    "residue": residue,
}


# --- running them ----------------------------------------------------------------------------------------------------


def _child(pipe: Any, name: str, case: str, dry: bool, device: str) -> None:
    if name == "fresh":
        pipe.send(one_trial(int(case), dry, device, False))
        return
    try:
        facts = MEASUREMENTS[name](dry, device)[case]()
    except Exception as error:  # an out-of-memory error of one case is a fact too
        facts = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    pipe.send(facts)


def in_fresh_process(name: str, case: str, dry: bool, device: str) -> Facts:
    """Run one case in a spawned process and wait for its end."""
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
            for case in MEASUREMENTS[name](dry, device):
                started = time.perf_counter()
                facts = in_fresh_process(name, case, dry, device)
                took = {"repeat": repeat, "wall_s": round(time.perf_counter() - started, 2)}
                emit({"measurement": name, "case": case, **took, **facts})
            if name == "residue":
                facts = fresh_children(dry, device)
                emit({"measurement": name, "case": "a fresh process each", "repeat": repeat, **facts})


def tables(rows: list[Facts]) -> str:
    """Return one Markdown table for each measurement: medians over the repeats, with the range of the peak."""
    groups: dict[str, dict[str, list[Facts]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["measurement"]][row["case"]].append(row)
    text = []
    for name, cases in groups.items():
        text += [f"\n### {name}", MEASUREMENTS[name].__doc__ or "", ""]
        render = _residue_lines if name == "residue" else _peak_lines
        text += render(cases)
    return "\n".join(text)


def _peak_lines(cases: dict[str, list[Facts]]) -> list[str]:
    lines = ["| case | reserved peak, MiB | against the first | allocated peak, MiB | activations, MiB | step, s |"]
    lines.append("|---|---|---|---|---|---|")
    first = None
    for case, rows in cases.items():
        errors = [row["error"] for row in rows if "error" in row]
        if errors:
            lines.append(f"| {case} | {errors[0]} | | | | |")
            continue
        reserved = [row["max_torch_reserved_bytes"] / MIB for row in rows]
        middle = statistics.median(reserved)
        first = middle if first is None else first
        change = f"{100 * (middle / first - 1):+.0f} %" if first else ""
        spread = f"{middle:.0f} ({min(reserved):.0f} to {max(reserved):.0f})"
        allocated = _median(rows, "max_allocated_bytes", MIB, 0)
        lines.append(
            f"| {case} | {spread} | {change} | {allocated} | {_median(rows, 'activations_bytes', MIB, 0)} "
            f"| {_median(rows, 'step_s', 1, 3)} |"
        )
    return lines


def _residue_lines(cases: dict[str, list[Facts]]) -> list[str]:
    lines = ["| case | left on the card after a trial, MiB: least, median, most | after the last |", "|---|---|---|"]
    for case, rows in cases.items():
        left = [value / MIB for row in rows for value in row.get("left_bytes", []) if value is not None]
        if not left:
            lines.append(f"| {case} | {rows[0].get('error', 'no NVML')} | |")
            continue
        last = statistics.median(row["left_bytes"][-1] / MIB for row in rows)
        lines.append(f"| {case} | {min(left):.0f}, {statistics.median(left):.0f}, {max(left):.0f} | {last:.0f} |")
    return lines


def _median(rows: list[Facts], key: str, unit: int, digits: int) -> str:
    values = [row[key] / unit for row in rows if row.get(key) is not None]
    return f"{statistics.median(values):.{digits}f}" if values else ""


def describe(device: str) -> Facts:
    """Return what the figures were measured on."""
    import torch

    facts: Facts = {"measurement": "machine", "torch": torch.__version__, "python": sys.version.split()[0]}
    if device == "cuda":
        # NVML and not torch: this process must hold no context while the others are measured.
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            facts["device"] = str(pynvml.nvmlDeviceGetName(handle))
            facts["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
            facts["total_bytes"] = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
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
        if facts["measurement"] != "machine":
            rows.append(facts)

    emit(describe(device))
    measure(chosen, args.dry, device, 1 if args.dry else args.repeats, emit)
    print(tables(rows))
    return 1 if all("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
