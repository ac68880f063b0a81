"""Objectives for tests on a real card: they hold memory there, compute, and break things on purpose.

They meet through files in $CARD_FOLDER: each leaves one when it is on the card, and waits for those a test makes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path

MIB = 1024**2
GIB = 1024**3
LIMIT_S = 60.0
#: The trial with this number breaks the card's rules in `sweep`.
CULPRIT = 3
#: What `take_from_the_driver` gives up at, and takes at a time.
MOST_BYTES = 4 * GIB
PIECE_BYTES = 128 * MIB

#: Writes to an address that nobody was given.
_PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry write_nowhere()
{
    .reg .u64 %place;
    .reg .u32 %value;
    mov.u64 %place, 16;
    mov.u32 %value, 1;
    st.global.u32 [%place], %value;
    ret;
}
\0"""
_GRANDCHILD = """
import os, pathlib, signal, sys, torch
held = torch.empty(2**30, dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
new = pathlib.Path(sys.argv[1] + ".new")
new.write_text(str(os.getpid()))
new.rename(sys.argv[1])
signal.pause()
"""


# ---- meeting -----------------------------------------------------------------------------------------


def leave(name, text=""):
    """Leave a file, whole from the first moment on."""
    path = Path(os.environ["CARD_FOLDER"], name)
    new = path.with_name(f".{name}.new")
    new.write_text(text)
    new.rename(path)


def is_there(name):
    return Path(os.environ["CARD_FOLDER"], name).exists()


def count(pattern):
    return len(list(Path(os.environ["CARD_FOLDER"]).glob(pattern)))


def wait_for(condition, what):
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not come within {LIMIT_S:g} s")
        time.sleep(0.01)


def is_client():
    return "CUDA_MPS_PIPE_DIRECTORY" in os.environ


# ---- work --------------------------------------------------------------------------------------------


def hold(size):
    import torch

    block = torch.empty(size, dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.synchronize()
    return block


class Work:
    """Steps on the card whose result is known: 1 as long as all is well."""

    def __init__(self):
        import torch

        self._matrix = torch.ones(256, 256, device="cuda")
        self.result = 1.0

    def step(self):
        self.result = min(self.result, float((self._matrix @ self._matrix).mean().item()) / 256)


def libcuda():
    return ctypes.CDLL("libcuda.so.1")


def take_from_the_driver():
    """Take memory past torch's allocator, until the driver refuses; returns bytes and the driver's last code."""
    import torch

    torch.ones(1, device="cuda")
    torch.cuda.synchronize()  # from here on the process has a context, and this thread uses it
    cuda = libcuda()
    cuda.cuMemAlloc_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
    cuda.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    places, code = [], 0
    while len(places) * PIECE_BYTES < MOST_BYTES:
        place = ctypes.c_uint64()
        code = cuda.cuMemAlloc_v2(ctypes.byref(place), PIECE_BYTES)
        if code:
            break
        places.append(place)
    for place in places:
        cuda.cuMemFree_v2(place)
    return len(places) * PIECE_BYTES, code


def write_nowhere():
    """Do what the hardware forbids. The driver tells it at the next call that waits for the card: torch raises then."""
    import torch

    cuda = libcuda()
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    code = cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(_PTX))
    if code == 0:
        code = cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"write_nowhere")
    if code == 0:
        one, none = ctypes.c_uint(1), ctypes.c_uint(0)
        stream = ctypes.c_void_p()
        code = cuda.cuLaunchKernel(kernel, one, one, one, one, one, one, none, stream, None, None)
    print(f"the kernel was launched: code {code}", flush=True)
    if code:
        _write_to_freed_memory()  # where the driver's compiler is not installed
    torch.cuda.synchronize()
    raise AssertionError("an illegal access went unnoticed")


class _Alias:
    """Memory as another library would hand it over: torch takes the address, and does not keep its owner."""

    def __init__(self, tensor):
        self.__cuda_array_interface__ = dict(tensor.__cuda_array_interface__)


def _write_to_freed_memory():
    import torch

    block = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
    alias = torch.as_tensor(_Alias(block), device="cuda")
    del block
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    alias.fill_(2)
    print("freed memory was written to", flush=True)


# ---- objectives --------------------------------------------------------------------------------------


def plain(trial):
    return 1.0


def meet(trial):
    """Hold $HOLD MiB, compute, and wait for the gate "go"."""
    block = hold(int(os.environ["HOLD"]) * MIB)
    work = Work()
    work.step()
    leave(f"here-{trial.number}", str(os.getpid()))
    wait_for(lambda: is_there("go"), "the gate")
    work.step()
    return work.result * float(len(block) // MIB)


def ask_too_much(trial):
    """Hold 1 GiB and ask for $ASK GiB more."""
    first = hold(GIB)
    leave(f"asks-{trial.number}")
    second = hold(int(os.environ["ASK"]) * GIB)
    return float((len(first) + len(second)) // GIB)


def work_beside(trial):
    """Hold 3 GiB and compute until the gate "go" is there."""
    block = hold(3 * GIB)
    work, steps = Work(), 0
    leave("beside")
    deadline_s = time.monotonic() + LIMIT_S
    while not is_there("go") and time.monotonic() < deadline_s:
        work.step()
        steps += 1
    trial.set_user_attr("steps", steps)
    return work.result * float(block[::MIB].float().mean().item())


def leave_a_grandchild(trial):
    """Leave a process that holds 1 GiB of the card, in a session of its own and with no parent of ours."""
    path = str(Path(os.environ["CARD_FOLDER"], "grandchild"))
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", _GRANDCHILD, path])
        os._exit(0)
    os.waitpid(child, 0)
    wait_for(lambda: is_there("grandchild"), "the grandchild")
    wait_for(lambda: is_there("go"), "the gate")
    return 1.0


def report_when_told(trial):
    """Hold 1 GiB, report at the gate "report", and end once a neighbour has begun."""
    block = hold(GIB)
    leave("holds")
    wait_for(lambda: is_there("report"), "the gate")
    trial.report(0.0, 0)
    wait_for(lambda: is_there("neighbour"), "the neighbour")
    return float(len(block) // GIB)


def begin(trial):
    """The neighbour of `report_when_told`."""
    block = hold(GIB)
    leave("neighbour")
    return float(len(block) // GIB)


def tell_the_drivers_limit(trial):
    """Say what the driver gives, and wait for the gate "go" if this is a client of MPS."""
    taken_bytes, code = take_from_the_driver()
    told = {name: value for name, value in os.environ.items() if name.startswith("CUDA_MPS")}
    trial.set_user_attr("taken_bytes", taken_bytes)
    trial.set_user_attr("code", code)
    leave(f"{'in' if is_client() else 'out'}-{trial.number}", json.dumps({"pid": os.getpid(), "env": told}))
    work = Work()
    if is_client():
        wait_for(lambda: is_there("go"), "the gate")
    work.step()
    return work.result


def sweep(trial):
    """Compute until a neighbour's fault, and a while after it; the culprit makes that fault among at least 3 others."""
    number = trial.suggest_int("number", 0, 99)
    work = Work()
    work.step()
    leave(f"{'in' if is_client() else 'out'}-{number}-{trial.number}")
    if number == CULPRIT:
        if is_client():
            wait_for(lambda: count("in-*") >= 4, "company")
        try:
            write_nowhere()
        finally:
            leave("fault")
    if is_client():
        while not is_there("fault"):
            work.step()
        end_s = time.monotonic() + 2.0
        while time.monotonic() < end_s:
            work.step()
    return work.result * number


def after_the_fault(trial):
    """Compute a little: MPS serves again."""
    work = Work()
    for _ in range(100):
        work.step()
    return work.result


def compute_when_told(trial):
    """Hold 1 GiB, say so, and compute until the gate "go"."""
    block = hold(GIB)
    work = Work()
    leave(f"{'in' if is_client() else 'out'}-{trial.number}", str(os.getpid()))
    if is_client():
        wait_for(lambda: is_there("go"), "the gate")
    work.step()
    return work.result * float(len(block) // GIB)


def convolve_in_a_small_lease(trial):
    """Train a ResNet whose convolutions would like more workspace than the lease has; cuDNN does without."""
    import torch
    from torchvision.models import resnet18

    net = resnet18(num_classes=10).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    x, y = torch.randn(256, 3, 224, 224, device="cuda"), torch.zeros(256, dtype=torch.long, device="cuda")
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    torch.cuda.synchronize()
    return 1.0


def swallow_an_error(trial):
    """Catch torch's own error, and go on with less."""
    import torch

    try:
        block = torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")
    except RuntimeError:
        block = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    return block.numel() / GIB
