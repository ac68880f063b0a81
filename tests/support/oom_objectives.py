"""Objectives that allocate on a fake card, through the torch of `support/fake_torch`. Gates are files in $MEETING."""

from __future__ import annotations

import os
import time
from pathlib import Path

GIB = 1024**3
MIB = 1024**2


def signal_gate(name):
    (Path(os.environ["MEETING"]) / name).touch()


def wait_for_gate(name, limit_s=40):
    gate, deadline = Path(os.environ["MEETING"]) / name, time.monotonic() + limit_s
    while not gate.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {name}")
        time.sleep(0.01)


def lease_bytes():
    from vrampool.training import runtime

    return runtime.current().lease_bytes


def cap_bytes(torch):
    return int(torch._C.fraction * torch.cuda.mem_get_info()[1])


# ---- shrinking and growing ---------------------------------------------------------------------------


def warm_up_then_wait(trial):
    """Hold 5.4 GiB in a warm-up, 1 GiB of it after, report, and end when the neighbour has begun."""
    import torch

    torch.cuda.drop(torch.cuda.take(5 * GIB + 400 * MIB))
    torch.cuda.take(GIB)
    trial.report(0.0, 0)
    wait_for_gate("neighbour")
    trial.set_user_attr("emptied", torch._C.emptied)
    trial.set_user_attr("cap_bytes", cap_bytes(torch))
    torch.cuda.take(2 * GIB)  # training goes on under the smaller cap
    return 1.0


def neighbour(trial):
    import torch

    torch.cuda.take(GIB)
    signal_gate("neighbour")
    return 2.0


def grow_after_shrinking(trial):
    """Once its lease is smaller it asks for what it had before: that is nobody's fault but the pool's."""
    import torch

    torch.cuda.take(4 * GIB)
    tries = Path(os.environ["MEETING"]) / "tries"
    with tries.open("a") as file:
        file.write("x")
    trial.report(0.0, 0)
    first = tries.stat().st_size == 1
    deadline = time.monotonic() + (20 if first else 1.0)
    before = cap_bytes(torch)
    while cap_bytes(torch) >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    trial.set_user_attr("shrunk", cap_bytes(torch) < before)
    torch.cuda.take(3 * GIB)
    return 1.0


def grow_step_by_step(trial):
    """Take a little more before each of many reports, up to $UP_TO GiB."""
    import torch

    torch.cuda.take(2 * GIB)
    trial.report(0.0, 0)
    wait_until_shrunk(torch)
    step = 0
    while torch.cuda.memory_allocated() < float(os.environ["UP_TO"]) * GIB:
        step += 1
        trial.report(0.0, step)
        torch.cuda.take(128 * MIB)
    return torch.cuda.memory_allocated() / GIB


def wait_until_shrunk(torch, limit_s=20):
    """Until its exclusive use of the device is over."""
    before, deadline = cap_bytes(torch), time.monotonic() + limit_s
    while cap_bytes(torch) >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cap_bytes(torch) < before, "its exclusivity did not end"


def second_is_larger(trial):
    """The first trial holds 1 GiB. The second takes 4 at once, three times what is asked for it, then waits a while."""
    import torch

    torch.cuda.take(GIB if trial.number == 0 else 4 * GIB)
    if trial.number:
        signal_gate("large")
        wait_for_gate("neighbour")
    return torch.cuda.memory_allocated() / GIB


# ---- out of memory -----------------------------------------------------------------------------------


class OutOfMemoryError(RuntimeError):
    pass


OutOfMemoryError.__module__ = "torch"  # CPU stand-in for torch.OutOfMemoryError

FORMS = [
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    OutOfMemoryError("CUDA out of memory. Tried to allocate 50.00 MiB"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: out of memory"),
]


def fail_below_1000_mib(trial):
    """A01: one of the spellings, while it has less than it needs."""
    if lease_bytes() < 1000 * MIB:
        raise FORMS[int(os.environ["FORM"])]
    return 1.0


def fail_for_host_memory(trial):
    """A02: words like those of an out-of-memory error of the card."""
    if os.environ["FORM"] == "a":
        raise MemoryError()
    if os.environ["FORM"] == "b":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    raise ValueError("my config says: CUDA out of memory is possible")


def always_out_of_memory(trial):
    raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")


def one(trial):
    return 1.0


def take_too_much(trial):
    """3 GiB, whatever the lease is."""
    import torch

    torch.cuda.take(3 * GIB)
    return 1.0


def swallow(trial):
    """Try 3 GiB; without them go on with 2, and say nothing. $END: how it ends then."""
    import optuna
    import torch

    half = False
    try:
        torch.cuda.take(3 * GIB)
    except torch.OutOfMemoryError:
        half = True
        if os.environ.get("END") == "prune":
            raise optuna.TrialPruned("too large") from None
        if os.environ.get("END") == "fail":
            raise ValueError("cannot train") from None
        torch.cuda.take(2 * GIB)
    return 2.0 if half else 3.0


def library_does_with_less(trial):
    """A library below Python is refused a workspace and does without it; the objective never hears of that."""
    import torch

    torch.cuda.take(GIB)
    trial.set_user_attr("had", [torch.cuda.try_workspace(size * GIB) for size in (8, 6, 1)])
    return 1.5


def swallow_at_the_full_card(trial):
    """Try more than any device has."""
    import torch

    try:
        torch.cuda.take(100 * GIB)
    except torch.OutOfMemoryError:
        return 0.5
    return 1.0


def find_a_batch_size(trial):
    """The helper halves its batch until it fits: that is what it is for."""
    import torch

    from vrampool import training

    def fit(size):
        torch.cuda.drop(torch.cuda.take(size * GIB))
        return float(size)

    return training.find_batch_size(trial, fit, start=4).value


def fall_victim(trial):
    """Keep to its lease of 4 GiB while somebody else takes the rest of the card."""
    import torch

    torch.cuda.take(GIB)
    signal_gate(f"holds-{trial.number}")
    if trial.number == 0:
        wait_for_gate("full")
    torch.cuda.take(2 * GIB)
    return 1.0


def hold_until_gate(trial):
    """Hold $HOLD GiB until the test opens the gate."""
    import torch

    torch.cuda.take(int(float(os.environ["HOLD"]) * GIB))
    signal_gate(f"holds-{trial.number}")
    wait_for_gate("open")
    return 1.0


def grow_after_neighbour(trial):
    """As `grow_step_by_step`, once a neighbour holds the rest; when it has failed the neighbour may go."""
    import torch

    torch.cuda.take(2 * GIB)
    trial.report(0.0, 0)
    if trial.number == 0:
        wait_until_shrunk(torch)
        wait_for_gate("holds-0")
    step = 0
    try:
        while torch.cuda.memory_allocated() < float(os.environ["UP_TO"]) * GIB:
            step += 1
            trial.report(0.0, step)
            torch.cuda.take(128 * MIB)
    finally:
        signal_gate("open")
    return 1.0
