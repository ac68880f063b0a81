"""The page of a pool that runs: Valkey, SQLite, a worker and trials, the command, and a real browser."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import start
from support.pools import LivePool
from support.waiting import until

OBJECTIVE = """
import os, time, optuna

def held(trial):
    x = trial.suggest_float("x", 0, 1)
    blocks = []
    while not os.path.exists(os.environ["GATE"]):
        if len(blocks) < 6:
            blocks.append(bytearray(os.urandom(1024)) * (10 * 1024))  # 10 MiB, touched
        trial.report(x, len(blocks) if len(blocks) < 6 else int(time.time()))
        time.sleep(0.2)
    return x
"""


class Command:
    """`vrampool dashboard` as a program."""

    def __init__(self, pool: LivePool, port: int = 0) -> None:
        self.process = start("dashboard", "--state-dir", pool.state_dir, "--port", str(port))
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert found, line + (self.process.stderr.read() if self.process.stderr and not line else "")
        self.url, self.port = found.group(0), int(found.group(1))
        self.token = (pool.state_dir / "dashboard-token").read_text().strip()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            for stream in (self.process.stdout, self.process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def command(pool: LivePool) -> Iterator[Command]:
    pool.device()
    command = Command(pool)
    yield command
    assert command.end() == 0, "it ends in order, pages open or not"
    pool.clear()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Trials run until this file is there."""
    return tmp_path / "gate"


def submit(pool: LivePool, tmp_path: Path, gate: Path, name: str, n_trials: int, **options: Any) -> Any:
    source = tmp_path / "objective.py"
    source.write_text(OBJECTIVE)
    return pool.submit(f"{source}:held", n_trials, study_name=name, env={"GATE": str(gate)}, **options)


def shows(page: Any, selector: str, text: str) -> None:
    page.locator(selector, has_text=text).first.wait_for(timeout=40_000)


NEWEST = "document.querySelector('#cards .plot').plot.rows.at(-1)"


def holds(page: Any, condition: str) -> None:
    until(lambda: page.evaluate(condition), what=condition, timeout_s=40)


def test_a_trial_appears_its_curve_rises_and_it_goes(pool, command, open_page, tmp_path, gate, picture):
    page = open_page(command.url)
    shows(page, "#cards article", "No trial runs here.")
    handle = submit(pool, tmp_path, gate, "rising", 2, direction="maximize")
    shows(page, "#cards .trials tbody", "rising 0")
    shows(page, "#cards .trials tbody", "rising 1")
    holds(page, f"{NEWEST}[5].some((trial) => trial[0] === 'rising' && trial[3] > 60)")
    first = page.evaluate(f"{NEWEST}[0]")
    holds(page, f"{NEWEST}[0] > {first} + 1")
    assert "free of its" in page.locator("#cards .why").first.inner_text()
    shows(page, "#study-cards article", "2 running")
    picture(page, "live-running")
    gate.touch()
    handle.wait(40)
    page.locator("#cards .trials tbody tr", has_text="rising").first.wait_for(state="detached", timeout=40_000)
    shows(page, "#study-cards article", "2 of 2 finished")
    card = page.locator("#study-cards article", has_text="rising").inner_text()
    assert "done" in card and f"trial {handle.best_trial.number}" in card and "200 MiB" in card
    holds(page, f"{NEWEST}[5].length === 0")
    page.wait_for_timeout(300)
    picture(page, "live-done")
    page.reload()
    holds(
        page, "document.querySelector('#cards .plot')?.plot.rows.some((row) => row[5].some((t) => t[0] === 'rising'))"
    )


def test_the_page_comes_back_by_itself_when_the_server_does(pool, command, open_page, tmp_path, gate):
    page = open_page(command.url)
    submit(pool, tmp_path, gate, "lasting", 1)
    shows(page, "#cards .trials tbody", "lasting 0")
    holds(page, f"{NEWEST}?.[5].length > 0")
    before = page.evaluate(f"{NEWEST}[0]")
    assert command.end() == 0
    page.locator("#link[data-state=lost]").wait_for()
    again = Command(pool, command.port)
    command.process = again.process
    page.locator("#link[data-state=live]").wait_for(timeout=40_000)
    holds(page, f"{NEWEST}[0] > {before} + 2")
    assert page.evaluate(f"document.querySelector('#cards .plot').plot.rows.some((row) => row[0] <= {before})")
    shows(page, "#cards .trials tbody", "lasting 0")
    # While nobody listened the browser has logged that; nothing else went wrong.
    open_page.errors[:] = [text for text in open_page.errors if "net::ERR" not in text]
    gate.touch()


def test_a_study_that_must_wait_says_why_as_the_command_does(pool, command, open_page, tmp_path, gate, picture):
    page = open_page(command.url)
    submit(pool, tmp_path, gate, "large", 3, vram="600MiB")
    shows(page, "#cards .trials tbody", "large 0")
    shows(page, "#queue .reason", "waits for 600 MiB")
    row = page.locator("#queue tbody tr").first
    name, reason = row.locator("th").inner_text(), row.locator(".reason").inner_text()
    # On a slow machine the second trial may have been asked for before the first one was seen to run.
    first = "it is asked for when a device has room; until then it " if name == "large (next trial)" else ""
    assert name in ("large (next trial)", "large 1")
    assert re.match(rf"{first}waits for 600 MiB: .*has .* free", reason), reason
    picture(page, "live-waiting")
    gate.touch()


def test_stop_and_pause_reach_the_pool(pool, command, open_page, tmp_path, gate):
    handle = submit(pool, tmp_path, gate, "endless", None)
    page = open_page(f"{command.url}#token={command.token}")
    shows(page, "#study-cards article", "endless")
    study = page.locator("#study-cards article", has_text="endless")
    study.get_by_role("button", name="Stop").click()
    page.locator("#confirm-do").click()
    until(lambda: str(handle.state) in ("stopping", "stopped"), what="a study that stops")
    assert handle.reason == "stopped from the dashboard"
    device = page.locator("#cards article").first
    for button, state in (("Pause", "paused"), ("Resume", "ready")):
        page.locator("#confirm:not([open])").wait_for(state="attached")
        device.get_by_role("button", name=button).click()
        page.locator("#confirm-do").click()
        until(lambda state=state: pool.device().state == state, what=state)
    gate.touch()
    handle.wait(40)


def test_metrics_of_a_pool_that_runs(pool, command, tmp_path, gate):
    from urllib.request import urlopen

    gate.touch()
    pool.run(lambda trial: 1.0, 3, study_name="measured")

    def scrape():
        with urlopen(command.url + "metrics") as answer:
            text = answer.read().decode()
        done = re.search(r'^vrampool_attempts_ended_total\{end="complete"\} ([0-9.]+)', text, flags=re.MULTILINE)
        return text if done and float(done.group(1)) >= 3 else None

    text = until(scrape, what="a look at the study that counts what has ended")
    found = dict(re.findall(r"^(\w+?)(?:\{[^}]*\})? ([0-9.e+]+)$", text, flags=re.MULTILINE))
    assert float(found["vrampool_redis_up"]) == float(found["vrampool_storage_up"]) == 1
    assert float(found["vrampool_startup_seconds_count"]) >= 3
    assert float(found["vrampool_device_budget_bytes"]) == 1024**3
