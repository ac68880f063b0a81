"""The systemd units: verified by systemd itself, and drained by `systemctl stop`."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from support.deploying import DEPLOY, absent, keys_of, program, run, variables_of

from vrampool.cli.serve import coordinator
from vrampool.settings import load_settings
from vrampool_worker.cli import worker
from vrampool_worker.listener import STUCK_S

UNITS = DEPLOY / "systemd"
WORKER = UNITS / "vrampool-worker@.service"
COORDINATOR = UNITS / "vrampool-coordinator.service"
ENVIRONMENT = UNITS / "vrampool.env.example"
SUPERVISOR_S = 25


@pytest.fixture
def installed(tmp_path) -> list[Path]:
    """The units as they lie on a host: the template as an instance, and a command that exists here."""
    found = []
    for unit in (WORKER, COORDINATOR, UNITS / "vrampool.target"):
        path = tmp_path / unit.name.replace("@.", "@0.")
        path.write_text(unit.read_text().replace("/opt/vrampool/bin/vrampool", sys.executable))
        found.append(path)
    return found


def verify(*units: Path):
    systemd = program("systemd-analyze")
    if int(re.search(r"systemd (\d+)", run(systemd, "--version").stdout).group(1)) < 250:
        absent("systemd-analyze of version 250 or newer")
    return run(systemd, "verify", "--man=no", "--recursive-errors=no", *units)


def test_systemd_takes_all_of_it(installed):
    done = verify(*installed)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("slip", [("KillMode=", "KilMode="), ("Type=notify", "Type=notfy")], ids=["key", "value"])
def test_systemd_notices_a_slip(installed, slip):
    unit = installed[0]
    unit.write_text(unit.read_text().replace(*slip))
    assert verify(unit).returncode != 0


@pytest.mark.parametrize(
    ("unit", "command"), [(WORKER, worker), (COORDINATOR, coordinator)], ids=["worker", "coordinator"]
)
def test_it_starts_a_command_that_exists(unit, command):
    program_, name, *words = shlex.split(keys_of(unit)["ExecStart"][0])
    assert (program_, name) == ("/opt/vrampool/bin/vrampool", command.name)
    command.make_context(name, words)


@pytest.mark.parametrize("unit", [WORKER, COORDINATOR], ids=["worker", "coordinator"])
def test_it_is_watched_and_kept_running(unit):
    keys = keys_of(unit)
    assert keys["Type"] == ["notify"]
    assert keys["Restart"] == ["on-failure"], "an end in order stays one"
    assert keys["StartLimitIntervalSec"] == ["0"], "Redis may be away for long"
    assert float(keys["WatchdogSec"][0]) > STUCK_S


def test_the_watchdog_of_a_coordinator_is_slower_than_its_own_idea_of_being_stuck():
    from vrampool.cli.serve import STUCK_S as COORDINATOR_STUCK_S

    assert float(keys_of(COORDINATOR)["WatchdogSec"][0]) > COORDINATOR_STUCK_S


def test_stopping_a_worker_drains_it():
    """SIGTERM to the supervisor alone, and more time than it takes."""
    keys = keys_of(WORKER)
    assert (keys["KillMode"], keys["KillSignal"]) == (["mixed"], ["SIGTERM"])
    settings = load_settings(env=variables_of(ENVIRONMENT))
    assert float(keys["TimeoutStopSec"][0]) >= settings.grace_s + settings.stop_ask_s + SUPERVISOR_S
    assert settings.grace_s >= 30


def test_a_lost_card_and_a_trial_without_memory_are_no_reasons_to_restart():
    keys = keys_of(WORKER)
    assert keys["RestartPreventExitStatus"] == ["3"]
    assert keys["OOMPolicy"] == ["continue"]


def test_a_worker_is_one_for_its_card():
    variables = dict(item.split("=", 1) for item in keys_of(WORKER)["Environment"])
    settings = load_settings(env={name: value.replace("%i", "2") for name, value in variables.items()})
    assert settings.gpu == "2"
    assert str(settings.secret_file) == str(Path("%d/secret").absolute())
    assert str(settings.state_dir) == f"/var/lib/{keys_of(WORKER)['StateDirectory'][0]}"


@pytest.mark.parametrize("unit", [WORKER, COORDINATOR], ids=["worker", "coordinator"])
def test_the_secret_is_no_variable_and_no_argument(unit):
    text = unit.read_text()
    assert keys_of(unit)["LoadCredential"] == ["secret:/etc/vrampool/secret"]
    assert "VRAMPOOL_SECRET=" not in text
    assert keys_of(unit)["UMask"] == ["0077"] and keys_of(unit)["NoNewPrivileges"] == ["yes"]


def test_stopping_the_target_stops_everything():
    for unit in (WORKER, COORDINATOR):
        assert keys_of(unit)["PartOf"] == keys_of(unit)["WantedBy"] == ["vrampool.target"]
    assert keys_of(UNITS / "vrampool.target")["WantedBy"] == ["multi-user.target"]
