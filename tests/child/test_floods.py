"""A trial may print and send what it likes: it is bounded, and its neighbours do not feel it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from support.child_driver import ChildDriver

from vrampool_worker.children.child import EventKind
from vrampool_worker.children.log import ChildLog


def test_bytes_that_are_no_text_are_kept_as_they_are(driver: ChildDriver) -> None:
    """And 300 kB of them after the bad byte do not hang the pipe."""
    story = driver.run(
        "import os\ndef objective(trial):\n    os.write(1, b'\\xc7\\x97 bad\\n'); os.write(2, b'\\xff' * 300_000)\n"
        "    print('\\udcff surrogate')\n    return 1.0\n"
    )
    assert story.outcome.values == [1.0]
    content = story.log_path.read_bytes()
    assert content.startswith(b"\xc7\x97 bad\n\xff\xff")
    assert content.endswith(b"\\udcff surrogate\n")


def test_the_last_words_of_a_killed_trial_are_kept(driver: ChildDriver) -> None:
    """Although it never flushed, and nobody asked Python to be unbuffered."""
    story = driver.spawn(env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"})
    driver.start(
        story, "import os\ndef objective(trial):\n    print('last words', trial.number)\n    os.kill(os.getpid(), 9)\n"
    )
    driver.until(lambda: story.child.gone)
    assert story.log == "last words 0\n"


def test_a_megabyte_of_output_is_bounded(driver: ChildDriver) -> None:
    story = driver.run(
        "def objective(trial):\n    print('first')\n    print('z' * 1_000_000)\n    print('last')\n    return 1.0\n"
    )
    assert story.outcome.values == [1.0]
    assert story.log.startswith("first\n") and story.log.endswith("\nlast\n")
    assert story.log_path.stat().st_size < driver.settings.log_bytes + 100
    assert "bytes of output left out here" in story.log
    assert story.kinds.count("log_overflow") == 1


def test_a_flood_of_output_costs_the_worker_little(driver: ChildDriver) -> None:
    """144 MB: kept to the limit, and read for a fraction of a core."""
    story = driver.start(
        driver.spawn(),
        "import os\ndef objective(trial):\n    line = b'x' * 71 + b'\\n'\n"
        "    for _ in range(2000): os.write(1, line * 1000)\n    print('done')\n    return 1.0\n",
    )
    before_s = time.process_time()
    driver.until(lambda: story.child.gone, limit_s=60)
    used_s = time.process_time() - before_s
    assert story.outcome.values == [1.0]
    assert story.log_path.stat().st_size < driver.settings.log_bytes + 100
    assert story.log.endswith("done\n")
    assert used_s < 2.0


def test_a_flood_of_calls_is_slowed_and_a_neighbour_is_not(driver: ChildDriver) -> None:
    """A child that sends frames without waiting gets two thousand a second; an honest one still gets its answers."""
    flooder = driver.start(
        driver.spawn(),
        "def objective(trial):\n    channel = trial._call.__self__._channel\n    while True:\n"
        "        channel.send('step', steps=1)\n",
    )
    driver.until(lambda: flooder.first(EventKind.STEP))
    honest = driver.start(
        driver.spawn(),
        "import time\ndef objective(trial):\n    begin = time.perf_counter()\n"
        "    for step in range(200): trial.report(0.0, step)\n    return time.perf_counter() - begin\n",
    )
    driver.until(lambda: honest.first(EventKind.STARTED))
    flood_before, began_s, cpu_s = flooder.kinds.count("step"), time.monotonic(), time.process_time()
    driver.until(lambda: honest.child.gone)
    lasted_s = time.monotonic() - began_s
    frames = flooder.kinds.count("step") - flood_before
    assert frames < 2000 * lasted_s + 2500
    assert honest.outcome.values is not None and honest.outcome.values[0] < 5.0
    assert time.process_time() - cpu_s < 0.9 * lasted_s + 1.0
    flooder.child.kill()
    driver.until(lambda: flooder.child.gone)


def test_a_frame_over_the_limit_ends_its_child_and_nothing_else(driver: ChildDriver) -> None:
    story = driver.run(
        "import os, struct\ndef objective(trial):\n    fd = trial._call.__self__._channel._fd\n"
        "    os.write(fd, struct.pack('>cI', b'J', 2**31))\n    os.write(fd, b'x' * 10_000_000)\n    return 1.0\n"
    )
    assert "over the limit" in str((story.first(EventKind.MISBEHAVED) or {})["text"])
    assert story.exited["signal"] == 9
    assert "outcome" not in story.kinds


def test_an_attribute_over_the_limit_is_refused_at_the_call(driver: ChildDriver) -> None:
    story = driver.run("def objective(trial):\n    trial.set_user_attr('blob', 'x' * 40_000_000)\n    return 1.0\n")
    assert story.outcome.type_name == "builtins.ValueError"
    assert "over the limit" in story.outcome.text


def test_a_frame_that_is_none_of_ours_ends_its_child(driver: ChildDriver) -> None:
    story = driver.run(
        "import time\ndef objective(trial):\n    trial._call.__self__._channel.send('recapped', nonsense=1)\n"
        "    time.sleep(60)\n"
    )
    assert story.first(EventKind.MISBEHAVED) is not None
    assert story.exited["signal"] == 9


def test_a_log_file_holds_head_and_tail_at_every_moment(tmp_path: Path) -> None:
    log = ChildLog(400)
    log.add(b"before the file\n")
    log.open(tmp_path / "deep" / "log")
    log.flush()
    assert (tmp_path / "deep" / "log").read_bytes() == b"before the file\n"
    for number in range(100):
        log.add(b"line %d\n" % number)
        if number % 7 == 0:
            log.flush()
            assert (tmp_path / "deep" / "log").read_bytes() == log.content()
    log.close()
    content = (tmp_path / "deep" / "log").read_bytes()
    assert content == log.content()
    assert content.startswith(b"before the file\nline 0\n") and content.endswith(b"line 99\n")
    dropped = int(content.split(b"\n... ")[1].split()[0])
    assert len(content) - len(b"\n... %d bytes of output left out here ...\n" % dropped) == 400


def test_a_log_that_cannot_be_written_is_no_fault_of_the_trial(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = ChildLog(400)
    log.open(tmp_path / "file" / "log")
    log.add(b"text")
    log.close()
    assert "cannot write" in log.problem and log.tail() == "text"
