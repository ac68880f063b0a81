"""What `vrampool doctor --gpu` runs in two children: one that takes too much, and one that works beside it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What the greedy one takes at a time.
PIECE_BYTES = 16 * 1024**2
#: It gives up at so many times its cap: then the cap does not hold.
TOO_MANY = 4
#: It keeps what it has for so long, so that the device is seen with it.
HELD_S = 0.5
#: Variables they get: whether they run on a GPU, the cap, and a file that ends the neighbour.
DEVICE, CAP, END = "PROOF_DEVICE", "PROOF_CAP_BYTES", "PROOF_END"
#: The neighbour ends by itself if nobody ends it.
LIMIT_S = 120.0


def greedy(trial: Any) -> float:
    """Take piece after piece until that fails. Returns the bytes taken if it never does."""
    take = _take_on_gpu if os.environ[DEVICE] == "cuda" else _take_on_cpu
    held: list[Any] = []
    try:
        while len(held) * PIECE_BYTES < TOO_MANY * int(os.environ[CAP]):
            held.append(take())
    finally:
        time.sleep(HELD_S)
    return float(len(held) * PIECE_BYTES)


def _take_on_cpu() -> Any:
    block = bytearray(PIECE_BYTES)
    block[::4096] = b"x" * len(block[::4096])  # so that it is really there
    return block


def _take_on_gpu() -> Any:
    import torch

    return torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cuda").fill_(1)


def neighbour(trial: Any) -> float:
    """Work on a little memory until it is told to end; report each step. Returns what the work must come to: 1."""
    step = _work_on_gpu() if os.environ[DEVICE] == "cuda" else _work_on_cpu()
    end, deadline_s = Path(os.environ[END]), time.monotonic() + LIMIT_S
    number, result = 0, 1.0
    while not end.exists() and time.monotonic() < deadline_s:
        result = min(result, step())
        trial.report(result, number)
        number += 1
        time.sleep(0.05)
    return result


def _work_on_cpu() -> Callable[[], float]:
    block = bytearray(PIECE_BYTES)
    return lambda: float(block.count(0) == PIECE_BYTES)


def _work_on_gpu() -> Callable[[], float]:
    """Use what most models use, so that the driver's part of the process is there whole: cuBLAS and cuDNN."""
    import torch

    image = torch.ones(1, 3, 32, 32, device="cuda")
    kernel = torch.ones(8, 3, 3, 3, device="cuda")
    matrix = torch.ones(512, 512, device="cuda")

    def step() -> float:
        inner = torch.nn.functional.conv2d(image, kernel)
        return float(bool(((matrix @ matrix) == 512).all()) and bool((inner == 27).all()))

    return step
