"""A pool as on several machines, in all that its defence is about."""

from __future__ import annotations

import io
import re
import ssl
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pytest
import trustme
from optuna.trial import TrialState
from support.commands import Done
from support.parts import Parts, living
from support.pools import variables
from support.postgres import PostgresServer
from support.tcp_valkey import Monitor, TcpValkey
from support.tls_front import TlsFront
from support.waiting import until

import vrampool
from vrampool.cli import main

ROOT = Path(__file__).parents[2]
USERS = ROOT / "deploy" / "redis" / "users.acl"
OBJECTIVES = Path(__file__).with_name("objectives.py")
ROLES = ("coordinator", "worker", "client", "viewer")
DATABASE_PASSWORD = "database%2Fpassword"  # "database/password": special characters travel quoted
SECRET = "5ec7e7" * 8


def password(role: str) -> str:
    return f"pw-of-the-{role}-user"


def users(pool: str = "vrampool") -> str:
    """Return the lines of `deploy/redis/users.acl` as an administrator fills them in."""
    text = re.sub(r"replace-the-password-of-(\w+)", lambda found: password(found[1]), USERS.read_text())
    return text.replace("vrampool:vrampool:", f"vrampool:{pool}:").replace("user default off\n", "")


#: What must be seen nowhere.
HIDDEN = [*(password(role) for role in ROLES), DATABASE_PASSWORD, "database/password", SECRET]


class Certificates:
    """A throw-away authority, a server's certificate for `localhost`, and another authority that nobody trusts."""

    def __init__(self, folder: Path) -> None:
        authority, other = trustme.CA(), trustme.CA()
        self.ca, self.wrong_ca = folder / "ca.pem", folder / "wrong-ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        other.cert_pem.write_to_path(self.wrong_ca)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self.server)


class Deployment:
    """Redis with users, PostgreSQL, both behind TLS; a coordinator, a worker, and `rq worker` beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = Certificates(folder)
        self.valkey = TcpValkey(folder / "valkey", users())
        self.monitor = Monitor(self.valkey)
        self.postgres = PostgresServer()
        self.postgres.start()
        context = self.certificates.server
        self.redis_front = TlsFront(context, ("127.0.0.1", self.valkey.port))
        self.postgres_front = TlsFront(context, self.postgres.folder / ".s.PGSQL.5432", postgres=True)
        name = self.postgres.new_database().partition("?")[0].rpartition("/")[2]
        self.storage = (
            f"postgresql+psycopg://postgres:{DATABASE_PASSWORD}@localhost:{self.postgres_front.port}/{name}"
            f"?sslmode=verify-full&sslrootcert={self.certificates.ca}"
        )
        self.parts = Parts(folder, self.url("client"), storage=self.storage, secret=SECRET, grace_s=20.0)
        (self.parts.state_dir / "secret").unlink()
        living.append(self.parts)
        self.outputs: list[Done] = []  #: of every command that people typed

    def url(self, role: str, *, ca: Path | None = None, host: str = "localhost") -> str:
        ca = ca or self.certificates.ca
        return f"rediss://{role}:{password(role)}@{host}:{self.redis_front.port}/0?ssl_ca_certs={ca}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.parts.stop()
        living.remove(self.parts)
        self.redis_front.close()
        self.postgres_front.close()
        self.postgres.remove()
        self.valkey.close()

    # ---- a day's work --------------------------------------------------------------------------------

    def work(self) -> None:
        """Do once whatever the roles do."""
        self.parts.coordinator(redis=self.url("coordinator"))
        # By variables, as SECURITY.md advises: an argument is there for everybody to read.
        rq = Path(sys.executable).with_name("rq")
        url = self.url("worker")
        self.rq_worker = self.parts.start(
            *[rq, "worker", "--worker-class", "vrampool_worker.GpuWorker", "vrampool"],
            env={"RQ_REDIS_URL": url},
            redis=None,
        )
        self.parts.worker(redis=url, env={"GATEKEEPER": "known to all"})
        with self.parts.pool() as pool:
            until(lambda: len(pool.devices()) == 2, what="two workers", timeout_s=60)
            self._studies(pool)
            self._commands()
            self.rq_worker.terminate()
            self.bundle = pool.submit(lambda trial: 1.0, 1, vram="90MiB").wait(90)
            assert self.rq_worker.wait(30) == 0
            self.around = self._run(pool, "look_around").trials[0].user_attrs["found"]

    def _run(self, pool: vrampool.Pool, objective: str, n_trials: int = 1, **options: Any) -> vrampool.Handle:
        return self._submit(pool, objective, n_trials, **options).wait(90)

    def _submit(self, pool: vrampool.Pool, objective: str, n_trials: int = 1, **options: Any) -> vrampool.Handle:
        env = {"GATE": str(self.folder / "gate")}
        return pool.submit(f"{OBJECTIVES}:{objective}", n_trials, vram="90MiB", env=env, **options)

    def _studies(self, pool: vrampool.Pool) -> None:
        crashing = self._submit(pool, "die", max_infra_retries=1)
        slow = self._submit(pool, "wait_at_gate", trial_timeout_s=0.5)
        self.handle = self._run(pool, "one", 3)
        assert [trial.state for trial in self.handle.trials] == [TrialState.COMPLETE] * 3
        for handle in (crashing, slow):
            assert {trial.state for trial in handle.wait(90).study.trials} == {TrialState.FAIL}
        for end in ("stop", "cancel"):
            handle = self._submit(pool, "wait_at_gate", 20, max_concurrent_trials=3)
            until(lambda: handle.progress().running, what="a running trial")
            if end == "stop":
                handle.stop()
                (self.folder / "gate").touch()
            else:
                handle.cancel()
            handle.wait(90)
            (self.folder / "gate").unlink(missing_ok=True)

    def _commands(self) -> None:
        for words in (["status"], ["status", "--json"], ["doctor"]):
            self.outputs.append(self.command("viewer", *words))
        for words in (["pause", "--all"], ["resume", "--all"]):
            self.outputs.append(self.command("client", *words))
        self.outputs.append(self.command("coordinator", "status", "--check", "--fix"))
        assert [done.code for done in self.outputs] == [0] * len(self.outputs), self.outputs

    def command(self, role: str, *words: str, redis: str | None = None, storage: str | None = None) -> Done:
        """Run a command as people with that role would."""
        settings = {**self.parts.settings, "redis": redis or self.url(role), "storage": storage or self.storage}
        named = {f"VRAMPOOL_{name.upper()}": "1" if value is True else str(value) for name, value in settings.items()}
        out, err = io.StringIO(), io.StringIO()
        with variables(named), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(list(words))
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out.getvalue(), err.getvalue())

    # ---- looking -------------------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Every process of the pool that runs now: parents, keepers, spares and trials."""
        found = [psutil.Process(process.pid) for process in self.parts.running()]
        return found + [child for process in found for child in process.children(recursive=True)]

    def denied(self) -> list[str]:
        """What Redis refused since it started, with the user."""
        return [
            f"{entry['username']}: {entry['reason']} {entry['object']}"
            for entry in self.valkey.admin.acl_log()
            if entry["username"] in ROLES
        ]
