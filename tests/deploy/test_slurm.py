"""The Slurm script: it runs here, with something in the command's place that can be asked and stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.deploying import DEPLOY
from support.waiting import until

from vrampool.settings import load_settings

SCRIPT = DEPLOY / "slurm" / "vrampool-worker.sbatch"
SUPERVISOR_S = 25
POOL = {
    "VRAMPOOL_REDIS": "redis://hub:6379/0",
    "VRAMPOOL_STORAGE": "postgresql+psycopg://hub/optuna",
    "VRAMPOOL_SECRET_FILE": "/dev/null",
}

# Notes how it was started; at SIGTERM it "drains" until it is allowed to end.
STAND_IN = """#!/bin/bash
env | grep ^VRAMPOOL_ > "$NOTES/environment"
echo "$@" > "$NOTES/arguments"
trap 'echo drains > "$NOTES/drains"' TERM
touch "$NOTES/started"
while [ ! -e "$NOTES/may-end" ]; do sleep 0.05; done
exit "$(cat "$NOTES/may-end")"
"""


@pytest.fixture
def notes(tmp_path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture
def job(tmp_path, notes):
    """The script as Slurm's batch step runs it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "vrampool").write_text(STAND_IN)
    (programs / "vrampool").chmod(0o755)
    env = {**os.environ, **POOL, "NOTES": str(notes), "SLURM_JOB_ID": "17", "SLURM_TMPDIR": str(tmp_path)}
    process = subprocess.Popen(["bash", SCRIPT], env=env | {"PATH": f"{programs}:{os.environ['PATH']}"})
    yield process
    (notes / "may-end").write_text("0")
    process.wait(20)


def directives() -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)", SCRIPT.read_text(), flags=re.MULTILINE))


def test_it_asks_for_gpus_and_for_a_word_before_the_end():
    asked = directives()
    assert int(asked["gpus-per-node"]) == 1
    assert (asked["nodes"], asked["ntasks"]) == ("1", "1")
    whom, _, rest = asked["signal"].partition(":")
    name, _, lead_s = rest.partition("@")
    assert (whom, name) == ("B", "TERM"), "the script alone: trials would end at once"
    grace_s = float(re.search(r"VRAMPOOL_GRACE_S:-(\d+)", SCRIPT.read_text()).group(1))
    assert int(lead_s) >= grace_s + SUPERVISOR_S


def test_the_worker_takes_the_allocated_gpus_and_keeps_its_state_on_the_node(job, notes, tmp_path):
    until((notes / "started").exists, what="the worker")
    assert (notes / "arguments").read_text() == "worker --gpu all\n"
    variables = dict(line.split("=", 1) for line in (notes / "environment").read_text().splitlines())
    settings = load_settings(env=variables)
    assert settings.grace_s == 180
    assert settings.state_dir == tmp_path / "vrampool-17" and settings.state_dir.is_dir()


@pytest.mark.parametrize("code", [0, 3])
def test_a_signal_drains_the_worker_and_the_job_ends_with_it(job, notes, tmp_path, code):
    until((notes / "started").exists, what="the worker")
    job.send_signal(signal.SIGTERM)
    until((notes / "drains").exists, what="the worker's drain")
    job.send_signal(signal.SIGTERM)  # preemption and the time limit at once
    assert job.poll() is None, "it waits for what runs"
    (notes / "may-end").write_text(str(code))
    assert job.wait(20) == code
    assert not (tmp_path / "vrampool-17").exists()


def test_without_the_addresses_it_says_what_is_missing(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("VRAMPOOL_")}
    done = subprocess.run(["bash", SCRIPT], env=env, capture_output=True, text=True)
    assert done.returncode != 0
    assert "VRAMPOOL_REDIS: set it to the URL" in done.stderr
