"""Objectives of these tests, imported by their path in the trials' own processes. Standard library only, so they start
at once; what an objective needs beyond that it imports itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SEEN: list[int] = []
AT_IMPORT = {
    name: os.environ.get(name)
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    )
}
MODULES_AT_IMPORT = sorted(sys.modules)


def one(trial):
    return 1.0


def draw(trial):
    return trial.suggest_float("x", 0, 1)


def tell_process(trial):
    """A05: what this process is, and whether it has run another trial before."""
    import multiprocessing

    SEEN.append(trial.number)
    trial.set_user_attr("pid", os.getpid())
    trial.set_user_attr("seen", len(SEEN))
    trial.set_user_attr("start", multiprocessing.get_start_method(allow_none=True) or "unset")
    trial.set_user_attr("cmdline", Path("/proc/self/cmdline").read_text().split("\0"))
    trial.set_user_attr("session", os.getsid(0))
    return 0.0


def tell_surroundings(trial):
    """What reaches a trial's process: modules, environment, arguments, descriptors."""
    trial.set_user_attr("modules", MODULES_AT_IMPORT)
    trial.set_user_attr("environment", dict(os.environ))
    trial.set_user_attr("argv", sys.argv)
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    trial.set_user_attr("descriptors", found)
    return 0.0


def tell_torch(trial):
    """Whether torch was there before this module, and what it has done so far."""
    trial.set_user_attr("loaded_before", "torch" in MODULES_AT_IMPORT)
    import torch

    trial.set_user_attr("cuda_initialized", torch.cuda.is_initialized())
    return float(torch.ones(3).sum())


def tell_import_environment(trial):
    """A07: the variables that bind it to its card, as they were when this module was imported."""
    trial.set_user_attr("at_import", AT_IMPORT)
    trial.set_user_attr("now", {name: os.environ.get(name) for name in AT_IMPORT})
    return 0.0


def hold_card_memory(trial):
    """Hold 3 GiB of the fake card that this process was given, until a reading has seen it."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.fake_nvml import hold

    hold(3 * 1024**3)
    time.sleep(1.5)
    return 1.0


def meet_on_cards(trial):
    tell_import_environment(trial)
    return meet(trial)


def meet(trial):
    """End once so many trials were in here at the same time; each leaves a file while it is."""
    folder, size = Path(os.environ["MEETING"]), int(os.environ["MEETING_SIZE"])
    own = folder / f"{trial.number}.here"
    own.touch()
    most, deadline = 0, time.monotonic() + 30
    while not (folder / "met").exists() and time.monotonic() < deadline:
        most = max(most, len(list(folder.glob("*.here"))))
        if most >= size:
            (folder / "met").touch()
        time.sleep(0.01)
    own.unlink()
    trial.set_user_attr("most", most)
    return float(most)


def wait_for_file(trial):
    """End when a file is there."""
    gate, deadline = Path(os.environ["GATE"]), time.monotonic() + 60
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return 1.0


# ---- how it ends -------------------------------------------------------------------------------------


class Unloadable(Exception):
    """A15: pickle makes it again with one argument too few."""

    def __init__(self, first, second):
        super().__init__("two args")


def raise_unloadable(trial):
    raise Unloadable(1, 2)


def raise_value_error(trial):
    raise ValueError("the same for all")


def return_odd_values(trial):
    """A18: one kind for each trial."""
    import numpy

    kinds = [None, float("nan"), "abc", "0.5", (1.0, 2.0), float("inf"), True, numpy.float32(0.5), [1.0]]
    return kinds[trial.number]


def return_exact_values(trial):
    return [0.1 + 0.2, 5e-324, float("-inf"), 1.7976931348623157e308][trial.number]


def prune(trial):
    """A19: its four ways, one for each trial."""
    import optuna

    class Own(optuna.TrialPruned):
        pass

    if trial.number == 0:
        trial.report(0.7, 3)
        raise optuna.TrialPruned()
    if trial.number == 1:
        raise optuna.TrialPruned()
    if trial.number == 3:
        raise Own("early")
    trial.report(float("nan"), 0)
    trial.report(0.4, 1)
    return 0.4


def set_odd_attributes(trial):
    """A20: the first value is let through uncaught, the others are caught, the last one is fine."""
    import numpy

    value = [numpy.float32(0.5), numpy.int64(3), {1, 2}, numpy.arange(3), numpy.float64(0.5)][trial.number]
    try:
        trial.set_user_attr("acc", value)
    except TypeError as error:
        if trial.number == 0:
            raise
        trial.set_user_attr("told", str(error))
    return 0.25


def leave(trial):
    """A22: by ways that are no `Exception`."""

    class Odd(BaseException):
        pass

    if trial.number == 0:
        sys.exit(3)
    if trial.number == 1:
        sys.exit(0)
    if trial.number == 2:
        raise KeyboardInterrupt
    raise Odd("x")


def big_attribute(trial):
    trial.set_user_attr("blob", "x" * 5_000_000)
    return 1.0


def big_error(trial):
    raise RuntimeError("y" * 5_000_000)


def big_print(trial):
    print("z" * 5_000_000)
    return 1.0


def print_no_text(trial):
    """A46: bytes that are no UTF-8, and more of them than a pipe holds."""
    os.write(1, b"\xc7\x97 bad\n")
    os.write(2, b"\xff" * 300_000)
    return 1.0


def last_words(trial):
    """A47: a line that nobody flushes, then the end."""
    print("last words", trial.number)
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(trial):
    import ctypes

    ctypes.string_at(0)


def die_twice(trial):
    """Killed in its first two attempts; draws the same in each."""
    trial.suggest_float("x", 0, 1)
    trial.set_user_attr("note", "n")
    tries = Path(os.environ["TRIES"])
    with tries.open("a") as file:
        file.write("x")
    if tries.stat().st_size < 3:
        trial.report(0.5, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    return trial.params["x"]


def hang_swallowing_all(trial):
    """A35: whatever is raised in it is swallowed."""
    while True:
        try:
            time.sleep(1)
        except Exception:
            pass


def hang_deaf(trial):
    """It hears no request to end at all."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            time.sleep(1)
        except BaseException:
            pass


def leave_processes(trial):
    """Leave some behind: an own session, and an own environment. How it ends itself depends on its number."""
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    left = [subprocess.Popen(program), subprocess.Popen(program, start_new_session=True)]
    bare = {"PATH": os.environ["PATH"]}
    left.append(subprocess.Popen(program, start_new_session=True, env=bare))
    with open(f"{os.environ['LEFT']}/{trial.number}-{os.getpid()}", "w") as file:
        file.write("\n".join(str(process.pid) for process in left))
    if trial.number == 1:
        raise ValueError("and gone")
    if trial.number == 2:
        hang_swallowing_all(trial)
    return 1.0


def square(x):
    return x * x


def start_processes(trial):
    """A16: a trial may have children of its own."""
    import multiprocessing

    total = 0
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(2) as workers:
            total += sum(workers.map(square, [1, 2, 3]))
    return float(total)


def mixed_ends(trial):
    """A48: most return, some raise, some are killed."""
    if trial.number % 8 == 3:
        raise ValueError("every eighth")
    if trial.number % 8 == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


# ---- memory ------------------------------------------------------------------------------------------


def hold(size_bytes):
    """Return so much memory that is really there."""
    held = bytearray(size_bytes)
    for start in range(0, size_bytes, 4096):
        held[start] = 1
    return held


def hold_then_meet(trial):
    """Hold 60 MiB and report, then wait for a second trial: alone until the report, together after it."""
    held = hold(60 * 1024**2)
    folder = Path(os.environ["MEETING"])
    own = folder / f"{trial.number}.here"
    trial.set_user_attr("before", len(list(folder.glob("*.here"))))
    own.touch()
    trial.report(0.0, 0)
    deadline = time.monotonic() + 30
    while not (folder / "met").exists() and time.monotonic() < deadline:
        if len(list(folder.glob("*.here"))) >= 2:
            (folder / "met").touch()
        time.sleep(0.01)
    time.sleep(0.3)  # so that a reading sees what it holds
    own.unlink()
    return float(len(held))


def hold_more(trial):
    """Hold 150 MiB of what Python asks the system for, long enough for a reading."""
    held = hold(150 * 1024**2)
    time.sleep(1)
    return float(len(held))


def allocate_for_ever(trial):
    held = []
    while True:
        held.append(hold(16 * 1024**2))
        time.sleep(0.01)


def allocate_at_once(trial):
    return float(len(bytearray(2 * 1024**3)))


def map_shared(trial):
    """Hold shared memory, as data loaders use it; no limit of a process counts it."""
    import mmap

    held = mmap.mmap(-1, int(os.environ["MAP_MIB"]) * 1024**2)
    for start in range(0, len(held), 4096):
        held[start] = 1
    time.sleep(1)
    return 1.0


def hold_what_it_draws(trial):
    """Hold so many MiB as its parameter says, touched, and long enough for a look at it."""
    blocks = trial.suggest_int("blocks", 10, 120)
    rate = trial.suggest_float("rate", 0.01, 1.0, log=True)
    held = bytearray(os.urandom(4096)) * (blocks * 256)
    trial.report(rate, 0)
    time.sleep(0.3)
    return rate + len(held) * 0.0
