"""A trial is asked first, then killed; whatever it is doing."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
from pathlib import Path

from support.child_driver import ChildDriver, Story, wait_for

from vrampool_worker.children.child import EventKind


def started(driver: ChildDriver, source: str, word: str = "begun") -> Story:
    """Start an objective and wait until it has printed a word."""
    story = driver.start(driver.spawn(), source)
    driver.until(lambda: word in story.child.log_tail() or story.child.gone)
    assert not story.child.gone, str(story)
    return story


def test_an_objective_that_is_asked_to_stop_can_clean_up(driver: ChildDriver) -> None:
    story = started(
        driver,
        "import time\ndef objective(trial):\n    try:\n        print('begun')\n        time.sleep(600)\n"
        "    finally:\n        print('cleaned up')\n",
    )
    story.child.ask_stop()
    driver.until(lambda: story.child.gone)
    assert story.outcome.kind == "stopped"
    assert "cleaned up" in story.log


def test_a_bare_retry_loop_does_not_swallow_the_stop(driver: ChildDriver) -> None:
    story = started(
        driver,
        "import time\ndef objective(trial):\n    print('begun')\n    while True:\n        try:\n"
        "            time.sleep(1)\n        except Exception:\n            pass\n",
    )
    story.child.ask_stop()
    driver.until(lambda: story.child.gone)
    assert story.outcome.kind == "stopped"


def test_the_stop_is_raised_once(driver: ChildDriver) -> None:
    """An objective that catches it and returns a value has its value; the second order does not spoil it."""
    story = started(
        driver,
        "import time\ndef objective(trial):\n    try:\n        print('begun')\n        time.sleep(600)\n"
        "    except BaseException:\n        time.sleep(0.3)\n    return 2.0\n",
    )
    story.child.ask_stop()
    driver.turn(0.05)
    story.child.ask_stop()
    driver.until(lambda: story.child.gone)
    assert story.outcome.values == [2.0]


def test_one_that_holds_the_interpreter_is_killed(driver: ChildDriver) -> None:
    """A loop that runs for hours in C, with the interpreter's lock held and no look at signals."""
    story = started(
        driver,
        "def objective(trial):\n    print('begun\\nnow')\n    return float(sum(range(10**13)))\n",
        word="now",
    )
    pid = story.child.pid
    assert pid is not None
    begun_with = cpu_ticks(pid)
    wait_for(lambda: cpu_ticks(pid) > begun_with + 20)  # the loop is on its way
    story.child.ask_stop()
    asked_at = cpu_ticks(pid)
    driver.until(lambda: cpu_ticks(pid) > asked_at + 20 or story.child.exited)
    assert not story.child.exited
    story.child.kill()
    driver.until(lambda: story.child.gone)
    assert story.exited["signal"] == signal.SIGKILL


def cpu_ticks(pid: int) -> int:
    """Return the processor time of a process in user code, in hundredths of a second."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def unread_bytes(story: Story) -> int:
    """Return what lies in the child's frame socket."""
    found = fcntl.ioctl(story.child._frames._fd, termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(found, sys.byteorder)


def switches(pid: int) -> str:
    """Return how often a process has gone to sleep, as the kernel counts."""
    return Path(f"/proc/{pid}/status").read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0]


def test_a_stop_never_cuts_a_frame(driver: ChildDriver) -> None:
    """It comes while half a frame is written: the rest of the frame follows, and then the outcome."""
    story = started(
        driver,
        "def objective(trial):\n    print('begun')\n    while True:\n"
        "        trial.set_user_attr('blob', 'x' * 3_000_000)\n",
    )
    pid = story.child.pid
    assert pid is not None
    driver.until(lambda: story.calls)
    # Nobody reads now, so it sleeps in the middle of the next frame; the signal wakes it there.
    wait_for(lambda: unread_bytes(story) > 100_000)
    before = switches(pid)
    story.child.ask_stop()
    wait_for(lambda: switches(pid) != before)
    driver.until(lambda: story.child.gone)
    assert "misbehaved" not in story.kinds
    assert story.outcome.kind == "stopped"


def test_a_stop_while_a_call_waits_for_its_answer_ends_the_call(driver: ChildDriver) -> None:
    """The answer that comes all the same is not taken for that of the next call."""
    driver.serve_calls = False
    story = driver.start(
        driver.spawn(),
        "def objective(trial):\n    try:\n        trial.suggest_float('x', 0, 1)\n"
        "    finally:\n        print('y is', trial.suggest_int('y', 7, 7))\n",
    )
    driver.until(lambda: story.first(EventKind.CALL))
    story.child.ask_stop()
    driver.until(lambda: story.kinds.count("call") == 2)
    first, second = [event for event in story.events if event.kind is EventKind.CALL]
    story.child.reply(first.data["id"], value={"value": 0, "warnings": []})
    driver.serve(story, second)
    driver.until(lambda: story.child.gone)
    assert story.outcome.kind == "stopped"
    assert "y is 7" in story.log


def test_ctrl_c_does_not_reach_a_trial(driver: ChildDriver) -> None:
    story = started(
        driver,
        "import time\ndef objective(trial):\n    print('begun')\n    for _ in range(30): time.sleep(0.01)\n"
        "    return 1.0\n",
    )
    assert story.child.pid is not None
    os.kill(story.child.pid, signal.SIGINT)
    os.kill(story.child.keeper_pid, signal.SIGINT)
    driver.until(lambda: story.child.gone)
    assert story.outcome.values == [1.0]
