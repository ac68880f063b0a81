"""Neither wire nor log nor /proc shows a password or the secret, and no output of a command does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from security.deployment import HIDDEN, ROLES, SECRET, Deployment, password

from vrampool.settings import Settings
from vrampool_worker.devices import find_devices
from vrampool_worker.environment import child_environment

pytestmark = pytest.mark.timeout(300)  # of the deployment's setup, see `test_roles`


def shown(text: str) -> list[str]:
    return [word for word in HIDDEN if word in text]


def test_redis_is_sent_no_secret(deployment: Deployment):
    """MONITOR shows all but the log-in itself: jobs, commands, records, events."""
    lines = "\n".join(text for _, text in deployment.monitor.lines)
    assert len(lines) > 50_000, "there was something to see"
    assert shown(lines) == []


def test_the_database_holds_no_secret(deployment: Deployment):
    tables = ("vrampool_submissions", "vrampool_bundles", "vrampool_meta", "trial_user_attributes", "studies")
    name = deployment.storage.partition("?")[0].rpartition("/")[2]
    for table in tables:
        rows = deployment.postgres.execute(name, f"SELECT * FROM {table}")
        assert shown("\n".join(repr(row) for row in rows)) == [], table


def test_no_log_and_no_output_of_a_command_shows_one(deployment: Deployment):
    files = [*deployment.parts.log_files(), *(deployment.parts.state_dir).rglob("*.log")]
    assert len(files) >= 4, "of coordinator, workers and trials"
    for file in files:
        assert shown(file.read_text(errors="replace")) == [], file
    for done in deployment.outputs:
        assert shown(str(done)) == []


def test_no_command_line_of_any_process_shows_one(deployment: Deployment):
    for process in deployment.processes():
        assert shown(" ".join(process.cmdline())) == [], process


def test_no_trial_and_no_keeper_has_one(deployment: Deployment):
    found = deployment.around
    assert len(found) == 4 and sum("GATEKEEPER=known to all" in text for text in found.values()) == 2
    for name, text in found.items():
        assert shown(text) == [], name
    children = [process for process in deployment.processes() if "vrampool_worker.child" in process.cmdline()]
    assert children, "spares wait"
    for process in children:
        assert shown(Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace")) == []


# ---- parents are closed to others of the same user -------------------------------------------------------

PARENTS = {
    "rq worker": "from rq.cli.cli import main; main(['worker', '--worker-class', 'closed.Closed', 'p', 'and-another'])",
    "vrampool worker": "from vrampool.cli import main; main(['worker', '--gpu', 'nothing-of-that-name'])",
    "vrampool coordinator": "from vrampool.cli import main; main(['coordinator'])",
    "worker process": "import vrampool_worker.serving as s; s.main()",
    "supervisor": "import vrampool_worker.supervisor as s; s.main()",
    "host of a local pool": "import sys; sys.argv = ['host']; import vrampool.local.host as h; h.main()",
}
CLOSED = '''
import ctypes, os
from vrampool_worker import GpuWorker
class Closed(GpuWorker):
    """Ends where it would begin to work."""
'''


@pytest.mark.parametrize("name", PARENTS)
def test_a_parent_cannot_be_dumped_or_traced(name: str, valkey: str, tmp_path: Path):
    """It closes itself before it reads a password: whatever it then fails of, it is closed."""
    (tmp_path / "closed.py").write_text(CLOSED)
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    program = (
        "import atexit, ctypes\n"
        "atexit.register(lambda: print('dumpable', ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True))\n"
        f"{PARENTS[name]}\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "RQ_REDIS_URL": valkey,
        "VRAMPOOL_STATE_DIR": str(tmp_path),
        "VRAMPOOL_STORAGE": "mysql://of-no-use",
        "VRAMPOOL_SHARE": "1",
        "VRAMPOOL_GPU": "cpu",
        "VRAMPOOL_BUDGET": "1GiB",
    }
    if name != "rq worker":
        env["VRAMPOOL_REDIS"] = "redis://127.0.0.1:1/0"
    if name == "host of a local pool":
        env["VRAMPOOL_BUDGET"] = "too much"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().splitlines()[-1:] == ["dumpable 0"], done.stdout + done.stderr


# ---- the environment of a child --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VRAMPOOL_REDIS", "redis://hub"),
        ("VRAMPOOL_SECRET", "anything"),
        ("RQ_REDIS_URL", "redis://hub"),
        ("PGPASSWORD", "anything"),
        ("REDISCLI_AUTH", "anything"),
        ("MY_DSN", "postgresql://me:p%40ss%2Fword@hub/db"),
        ("MY_PASSWORD", "p@ss/word"),
        ("OTHER", "so: query-pw"),
        ("TOLD_TO_RQ", "rq-pw"),
        ("COPY_OF_SECRET", "x" * 32),
    ],
)
def test_a_variable_with_a_password_in_whatever_form_does_not_reach_a_trial(name: str, value: str, tmp_path: Path):
    settings = Settings(
        redis="redis://:redis-pw@hub:6379/0",
        storage="postgresql://me:p%40ss%2Fword@hub/db?sslpassword=query-pw",
        secret="x" * 32,
    )
    device = find_devices(Settings(gpu="cpu"), {})[0]
    child = child_environment({name: value, "HOME": "/root"}, device, settings, secrets=["rq-pw", ""])
    assert name not in child and child["HOME"] == "/root"
    named = child_environment({name: value}, device, settings.with_changes(env_pass=name), secrets=["rq-pw"])
    assert named[name] == value, "who names it wants it there"


@pytest.mark.parametrize("role", ROLES)
def test_the_roles_have_passwords_that_are_looked_for(role: str):
    assert password(role) in HIDDEN
