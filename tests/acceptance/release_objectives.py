"""Objectives of the tests of release: what they hold, leave, and never give back."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def one(trial):
    return 1.0


def wait_for_file(trial):
    """End when a file is there."""
    gate, deadline = Path(os.environ["GATE"]), time.monotonic() + 60
    while not gate.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return 1.0


def leave_a_daemon(trial):
    """Start a daemon as careful ones are: two forks, own session, no directory, environment or open file. Then wait."""
    first = os.fork()
    if first == 0:
        os.setsid()
        second = os.fork()
        if second:
            with open(f"{os.environ['LEFT']}/{second}.daemon", "w"):
                os._exit(0)
        os.chdir("/")
        os.closerange(0, 64)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    os.waitpid(first, 0)
    return wait_for_file(trial)


def hold_on_card(trial):
    """Hold 1 GiB of the card through torch, and wait."""
    import torch

    held = torch.empty(1024**3, device="cuda")
    waited = wait_for_file(trial)
    del held
    return waited


def hold_a_gib(trial):
    """Hold 1 GiB of the fake card, by nobody's allocator, until a reading has seen it."""
    from support.fake_nvml import hold as hold_card

    hold_card(1024**3)
    time.sleep(0.5)
    return 1.0


def tell_pid_and_wait(trial):
    place = Path(os.environ["TOLD"])
    place.with_suffix(".new").write_text(str(os.getpid()))
    place.with_suffix(".new").rename(place)
    return wait_for_file(trial)


def hold_beyond(trial):
    """Hold more of the fake card than any lease, by a library that knows no cap."""
    from support.fake_nvml import hold as hold_card

    hold_card(25 * 1024**3)
    time.sleep(30)
    return 1.0
