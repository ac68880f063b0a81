"""`vrampool top`: a pool in 80 columns, with and without colours, live in a terminal and once elsewhere."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import sys
import termios
import time

import pyte
from rich.console import Console
from support.commands import call
from support.pools import LivePool
from support.waiting import until

from vrampool.cli.board import Snapshot, StudyLine, bar, draw
from vrampool.handle import Progress
from vrampool.queueing import MpsState, RunningTrial, WaitingJob, WorkerRecord
from vrampool.units import GIB, MIB

NOW = 1_800_000_000.0


def device(number=0, running=(), **changes):
    values = {
        "name": f"w-{number}",
        "host": "hub",
        "pid": 1,
        "device_id": f"GPU-{number}",
        "device_name": f"GPU {number} (NVIDIA H200)",
        "device_kind": "cuda",
        "total_bytes": 140 * GIB,
        "budget_bytes": 119 * GIB,
        "free_bytes": 40 * GIB,
        "slots": 16,
        "state": "ready",
        "running": tuple(running),
    }
    return WorkerRecord(**(values | changes))


def running(number, study="digits", lease_gib=3, held_gib=2.1, since=NOW - 42):
    return RunningTrial(study, number, int(lease_gib * GIB), int(held_gib * GIB), since)


def snapshot(devices=(), **changes):
    return Snapshot("vrampool", devices, now=NOW, **changes)


def lines(content, width=80, height=None, **options):
    """Return what is drawn as lines without colours."""
    console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False)
    console.print(draw(content, width, height, **options))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_device_shows_what_it_holds_and_each_trial_its_part_of_its_lease():
    shown = lines(snapshot([device(running=[running(12)])], samples={"GPU-0": {"utilisation": 0.87}}))
    assert shown[0].startswith("vrampool top  pool vrampool: 1 device, 1 running, 0 waiting")
    assert shown[2].startswith("GPU 0 (NVIDIA H200)  hub") and shown[2].endswith("87 % busy  ready")
    assert shown[3].endswith("2.1 of 119.0 GiB held, 3.0 GiB leased")
    assert re.fullmatch(r"    digits/12  █{10}▒{4}  2\.1 of 3\.0 GiB leased   +0:42", shown[4])


def test_mps_is_told_beside_the_state_and_what_runs_without_it_below():
    on = MpsState("on", clients=3, outside={"train.py:objective": "a fault of digits/7 took down all clients"})
    off = MpsState("off", "nvidia-cuda-mps-control is not installed")
    shown = lines(snapshot([device(mps=on), device(1, mps=off), device(2)]), 100)
    assert shown[2].endswith("MPS on, 3 trials  ready")
    assert shown[4] == "  train.py:objective runs outside MPS: a fault of digits/7 took down all clients"
    assert shown[5].endswith("ready") and "MPS" not in shown[5], "the line below says it"
    assert shown[7] == "  MPS is off: nvidia-cuda-mps-control is not installed"
    assert shown[8].startswith("GPU 2") and "MPS" not in "".join(shown[8:])


def test_what_ended_trials_left_behind_is_told():
    shown = lines(snapshot([device(leftovers=("digits/3 left 1.0 GiB",))]))
    assert shown[4] == "  digits/3 left 1.0 GiB"


def test_what_holds_trials_up_is_told():
    still = RunningTrial("digits", 12, GIB, GIB, NOW, trouble="its process 17 was stopped")
    shown = lines(snapshot([device(running=[still], troubles=("importing hangs ahead of trials",))]))
    assert shown[4:6] == ["  importing hangs ahead of trials", "  digits/12 does nothing: its process 17 was stopped"]


def test_the_bar_tells_by_form_what_is_held_leased_and_free():
    assert bar(10, 100, 40, 70).plain == "████▒▒▒···"
    assert bar(10, 100, 1, 1).plain == "█·········", "what is there is seen"
    assert bar(10, 100, 300, 300).plain == "██████████"
    assert bar(10, 0, 0, 0).plain == "··········"


def test_a_waiting_trial_is_told_with_its_sentence():
    job = WaitingJob("j", "s", 15, 14 * GIB, NOW - 63, study="digits", waits_s=63)
    shown = lines(snapshot([device()], waiting=[job], reasons={"j": "waits for 14.0 GiB: GPU 0 has 9.1 GiB free"}))
    assert "   1:03  digits/15 waits for 14.0 GiB: GPU 0 has 9.1 GiB free" in shown


def test_a_study_shows_its_progress_and_its_ooms():
    line = StudyLine("digits", Progress("open", "", 100, 25, 3, 1), "best 0.98123 (trial 4)", 2)
    assert lines(snapshot(studies=[line]))[-1] == (
        "  digits  ██········  25/100 done, 3 running, 2 OOM, best 0.98123 (trial 4)"
    )


def test_at_80_columns_the_best_of_a_study_is_whole_and_one_that_has_ended_has_none_that_runs():
    best = "best 0.55075 (trial 43)"
    runs = StudyLine("a-long-name-for-a-search-of-mine", Progress("open", "", 125, 48, 2, 1), best)
    shown = lines(snapshot(studies=[runs, StudyLine("digits", Progress("done", "", 60, 60, 0, 0), best)]))
    assert shown[-2].endswith(f"48/125 done, 2 running, {best}") and shown[-1].endswith(f"60/60 done, {best}")
    assert shown[-2].index("48/125") == shown[-1].index("60/60")


def test_no_line_is_longer_than_the_terminal_and_no_picture_higher():
    crowd = [running(number, "a-study-with-a-name-that-has-no-end-" + "x" * 60) for number in range(30)]
    jobs = [WaitingJob(f"j{number}", "s", number, GIB, NOW, study="digits") for number in range(40)]
    reasons = {job.job_id: "waits " + "for very good reasons " * 12 for job in jobs}
    studies = [StudyLine(f"study-{number}", Progress("open", "", 10, 1, 1, 1)) for number in range(30)]
    content = snapshot(
        [device(number, crowd, state="paused", reason="because " * 30) for number in range(4)],
        waiting=jobs, reasons=reasons, studies=studies, problem="not up to date: " + "x" * 200,
    )  # fmt: skip
    for width, height in ((80, 24), (40, 50), (200, 60)):
        shown = lines(content, width, height)
        assert max(map(len, shown)) <= width and len(shown) <= height
        assert any(line.endswith("more waiting trials") for line in shown)
        assert any(line.strip().endswith("more lines") for line in shown)
    assert any("~/29" in line for line in lines(content)), "the number of a trial is never cut off"


def test_without_block_characters_it_is_drawn_in_ascii():
    shown = "\n".join(lines(snapshot([device(running=[running(1)])]), ascii_only=True))
    shown.encode("ascii")
    "\n".join(lines(snapshot([device(reason="because " * 30)]), 40, ascii_only=True)).encode("ascii")
    assert "##########====" in shown


def test_others_on_the_device_and_a_pool_without_worker_are_told():
    shown = lines(snapshot([device()], samples={"GPU-0": {"strangers_bytes": 300 * MIB}}))
    assert shown[3].endswith("0.0 of 119.0 GiB held, 0 B leased, 300 MiB by others")
    assert "no worker is running: start one with `vrampool worker --gpu all`" in lines(snapshot())


# ---- on a pool -----------------------------------------------------------------------------------------


def wait_for(path):
    def objective(trial):
        import time
        from pathlib import Path

        while not Path(path).exists():
            time.sleep(0.01)
        return 0.5

    return objective


def test_where_nobody_watches_one_snapshot_is_printed(pool: LivePool, capsys, tmp_path):
    handle = pool.submit(wait_for(tmp_path / "go"))
    until(lambda: pool.device().running, what="a running trial")
    done = call(capsys, "top", "--state-dir", pool.state_dir)
    assert (done.code, done.err) == (0, "") and "\x1b" not in done.out
    assert f"{handle.study_name}/0" in done.out and "0/1 done, 1 running" in done.out
    (tmp_path / "go").touch()
    handle.wait(40)
    assert "1/1 done" in call(capsys, "top", handle.study_name, "--state-dir", pool.state_dir).out
    done = call(capsys, "top", "nothing", "--state-dir", pool.state_dir)
    assert done.code == 2 and "has no study 'nothing'" in done.err


class Terminal:
    """A terminal of 80 by 24 with a program in it."""

    def __init__(self, *arguments, **variables):
        self.screen = pyte.Screen(80, 24)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **variables})
            os.execv(sys.executable, [sys.executable, "-m", "vrampool", *arguments])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def shows(self, words):
        """True when the words are on the screen by now."""
        while select.select([self.fd], [], [], 0.02)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the program has ended
                break
            if not data:
                break
            self.raw += data
            self._stream.feed(data)
        return any(words in line for line in self.screen.display)

    def end(self, key, limit_s=60.0):
        """Press a key and return the exit code."""
        os.write(self.fd, key)
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            self.shows("")
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        raise AssertionError("it did not end:\n" + "\n".join(self.screen.display))


def test_in_a_terminal_it_is_live_and_q_ends_it(pool: LivePool, tmp_path):
    handle = pool.submit(wait_for(tmp_path / "go"))
    until(lambda: pool.device().running, what="a running trial")
    terminal = Terminal("top", "--interval", "0.2", "--state-dir", str(pool.state_dir), NO_COLOR="1")
    until(lambda: terminal.shows(f"{handle.study_name}/0"), what="the running trial")
    assert terminal.shows("0/1 done, 1 running")
    (tmp_path / "go").touch()
    until(lambda: terminal.shows("1/1 done"), what="its end, without being asked")
    assert terminal.end(b"q") == 0
    assert b"\x1b[?1049l" in terminal.raw, "the screen of before is back"
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]m", terminal.raw), "no colour"


def test_an_interrupt_ends_it_in_order(pool: LivePool):
    terminal = Terminal("top", "--state-dir", str(pool.state_dir))
    until(lambda: terminal.shows("studies"), what="a picture")
    assert re.search(rb"\x1b\[[0-9;]*3[0-7]m", terminal.raw), "colours where they are welcome"
    assert terminal.end(b"\x03") == 0


def test_on_a_dumb_terminal_it_prints_once(pool: LivePool):
    terminal = Terminal("top", "--state-dir", str(pool.state_dir), TERM="dumb")
    assert terminal.end(b"") == 0
    assert b"vrampool top" in terminal.raw and b"\x1b" not in terminal.raw
