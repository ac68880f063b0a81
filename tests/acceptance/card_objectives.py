"""Objectives that hold memory of a fake card without any framework, for cases about the card and not about torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MIB = 1024**2
TESTS = str(Path(__file__).parents[1])


def hold_card(size_mib):
    sys.path.insert(0, TESTS)
    from support.fake_nvml import hold

    hold(size_mib * MIB)


def hold_a_while(trial):
    """Hold $HOLD MiB, long enough for a reading."""
    hold_card(int(os.environ["HOLD"]))
    time.sleep(0.4)
    return 1.0


def hold_in_company(trial):
    """The same, and count who is there; each leaves a file while it is.

    Ends when $GATE is there, or so many have met ($COMPANY), or after $STAY_S.
    """
    folder = Path(os.environ["MEETING"])
    own, met = folder / f"{trial.number}.here", folder / "met"
    gate = Path(os.environ.get("GATE", "/none"))
    company = int(os.environ.get("COMPANY", "0"))
    own.touch()
    hold_card(int(os.environ["HOLD"]))
    most, deadline = 0, time.monotonic() + float(os.environ.get("STAY_S", "20"))
    while time.monotonic() < deadline and not gate.exists():
        most = max(most, len(list(folder.glob("*.here"))))
        if company and (most >= company or met.exists()):
            met.touch()
            deadline = min(deadline, time.monotonic() + 0.7)  # would one more come?
            company = 0
        time.sleep(0.01)
    own.unlink()
    return float(most)


def tell_preallocation(trial):
    """A10: what keeps frameworks from taking the whole card."""
    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH"):
        trial.set_user_attr(name, os.environ.get(name))
    return 0.0


def tell_card(trial):
    trial.set_user_attr("card", os.environ.get("CUDA_VISIBLE_DEVICES"))
    return 0.0


def leave_holders_and_die(trial):
    """A04: workers that hold memory of the card, one of them in a session of its own, survive the killed trial."""
    program = f"import sys; sys.path.insert(0, {TESTS!r})\nfrom support.fake_nvml import hold\nhold(1024 * {MIB})\n"
    program += "import pathlib, os, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(600)"
    folder = Path(os.environ["MEETING"])
    for name, alone in (("one", False), ("two", True)):
        gate = str(folder / f"{name}-{trial.number}")
        subprocess.Popen([sys.executable, "-c", program, gate], start_new_session=alone)
    deadline = time.monotonic() + 20
    while len(list(folder.glob(f"*-{trial.number}"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # so that a reading sees what they hold
    os.kill(os.getpid(), signal.SIGKILL)


def outgrow_its_control_group(trial):
    """A50: put itself into a group with a limit, and take more: the kernel kills it."""
    Path(os.environ["GROUP"], "cgroup.procs").write_text(str(os.getpid()))
    held = bytearray(256 * MIB)
    for start in range(0, len(held), 4096):
        held[start] = 1
    return float(len(held))


def count_tries(trial):
    """A41: a short trial; each start leaves a line."""
    with open(os.environ["TRIES"], "a") as file:
        file.write(f"{trial.number} {os.environ['CUDA_VISIBLE_DEVICES']}\n")
    time.sleep(0.3)
    return 1.0
