"""Which build of torch `make demo` and `make test` install: `requirements/torch.sh`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "requirements" / "torch.sh"
PIN = next(line for line in (SCRIPT.parent / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))

# Stands in for the environment's Python: notes what pip is asked for, has a driver's library or not, and finds the CPU
# build or not.
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exit "$NO_DRIVER_LIBRARY"; fi
echo "$@" >> "$CALLS"
case "$*" in *+cpu) exit "$NO_CPU_BUILD";; esac
"""


@pytest.fixture
def asked(tmp_path):
    """A function that runs the script and returns the last words of each call of pip."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "grep", "sh"):
        (programs / name).symlink_to(next(p for p in (Path("/bin") / name, Path("/usr/bin") / name) if p.exists()))

    def run(*, smi=False, library=False, cpu_build=True, index=""):
        if smi:
            (programs / "nvidia-smi").symlink_to("/bin/true")
        calls = tmp_path / "calls"
        env = {"PATH": str(programs), "CALLS": str(calls), "TORCH_INDEX": index}
        env |= {"NO_DRIVER_LIBRARY": str(int(not library)), "NO_CPU_BUILD": str(int(not cpu_build))}
        done = subprocess.run(["bash", SCRIPT, python], env=os.environ | env, capture_output=True, text=True)
        asked_for = [line.partition("constraints.txt ")[2] for line in calls.read_text().splitlines()]
        return done, asked_for

    return run


@pytest.mark.parametrize("sign", ["smi", "library"])
def test_a_machine_with_an_nvidia_driver_gets_the_build_for_cuda(asked, sign):
    done, asked_for = asked(**{sign: True})
    assert (done.returncode, asked_for) == (0, [PIN])


def test_a_machine_without_a_driver_gets_the_cpu_build(asked):
    done, asked_for = asked()
    assert (done.returncode, asked_for) == (0, [f"{PIN}+cpu"])


def test_an_index_given_by_the_user_is_asked_for_the_cpu_build(asked):
    done, asked_for = asked(index="https://torch.example/cpu")
    assert (done.returncode, asked_for) == (0, [f"--extra-index-url https://torch.example/cpu {PIN}+cpu"])


def test_where_no_source_has_a_cpu_build_the_default_one_is_taken_and_the_way_out_named(asked):
    done, asked_for = asked(cpu_build=False)
    assert (done.returncode, asked_for) == (0, [f"{PIN}+cpu", PIN])
    assert "TORCH_INDEX" in done.stdout


def test_an_index_without_the_build_is_an_error_and_not_a_large_download(asked):
    done, asked_for = asked(cpu_build=False, index="https://torch.example/cpu")
    assert done.returncode != 0
    assert len(asked_for) == 1
