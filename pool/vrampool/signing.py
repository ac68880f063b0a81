"""Signatures of what travels through Redis and the database, and the secret they are made with.

Who may enqueue may run code on the workers, so only holders of the secret may enqueue. A signed text is
``v1:<64 hex digits>:<json>``; it says what it is for (the purpose) and which job it belongs to, so that a text signed
for one thing is refused for another. It hides nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Any

from vrampool.errors import MessageError, SettingsError
from vrampool.messages import ENTRY_POINT, WIRE_VERSION, SubmissionSpec, Ticket
from vrampool.settings import Settings

FORMAT = b"v1"
SECRET_FILE_NAME = "secret"  # noqa: S105 - the name of a file
#: Shorter secrets can be guessed offline from one signed message.
SHORTEST_SECRET = 16
#: No signed text is longer; checked before anything is hashed or parsed.
SIGNED_LIMIT_BYTES = 16 * 1024**2
PURPOSE_JOB = "job"
PURPOSE_SPEC = "submission"


class Signer:
    """Signs and checks bytes for a purpose, with HMAC-SHA256. Safe to share between threads.

    Args:
        secret: The pool's shared secret.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SHORTEST_SECRET:
            raise SettingsError(
                f"the secret is shorter than {SHORTEST_SECRET} characters; make one with `openssl rand -hex 32`"
            )
        self._secret = secret

    def __repr__(self) -> str:
        return "Signer(...)"  # a secret in a log or a traceback is a secret no more

    def sign(self, purpose: str, body: bytes) -> str:
        """Return the signature of a body for a purpose: 64 hex digits."""
        return hmac.new(self._secret, f"vrampool:{purpose}\0".encode() + body, hashlib.sha256).hexdigest()

    def verify(self, purpose: str, body: bytes, signature: str) -> None:
        """Check a signature.

        Raises:
            MessageError: it was made for another body, for another purpose, or with another secret.
        """
        if not signature.isascii() or not hmac.compare_digest(self.sign(purpose, body), signature):
            raise MessageError(
                f"the signature of a {purpose} does not match: it was altered, or signed with another secret"
            )

    def sign_json(self, purpose: str, value: Any) -> bytes:
        """Return a JSON value as a signed text."""
        body = json.dumps(value, separators=(",", ":")).encode()
        return b":".join((FORMAT, self.sign(purpose, body).encode(), body))

    def open_json(self, purpose: str, signed: bytes) -> Any:
        """Check a signed text and return its JSON value; nothing of it is parsed before the check.

        Raises:
            MessageError: it is unsigned, altered, too long, or of another format.
        """
        if len(signed) > SIGNED_LIMIT_BYTES:
            raise MessageError(f"a {purpose} of {len(signed)} bytes is over the limit of {SIGNED_LIMIT_BYTES}")
        version, found, rest = signed.partition(b":")
        signature, found_too, body = rest.partition(b":")
        if not found or not found_too or len(signature) != 64:
            raise MessageError(f"a {purpose} without a signature is refused; enqueue with vrampool, not by hand")
        if version != FORMAT:
            raise MessageError(
                f"a {purpose} is signed in format {version[:8]!r}, this side knows {FORMAT!r}; "
                "use one vrampool version everywhere"
            )
        self.verify(purpose, body, signature.decode("ascii", "replace"))
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"a signed {purpose} is not JSON: {error}") from None

    def sign_ticket(self, job_id: str, ticket: Ticket) -> bytes:
        """Return the payload of one RQ job: RQ's call as signed JSON, naming the entry point, the job and the trial."""
        return self.sign_json(PURPOSE_JOB, [ENTRY_POINT, None, [job_id, ticket.to_json()], {}])

    def open_ticket(self, job_id: str, payload: bytes, *, pool: str | None = None) -> Ticket:
        """Check the payload of the job `job_id` and return its ticket.

        Args:
            job_id: The job it was found in.
            payload: RQ's ``data`` of that job.
            pool: The pool it was found in; None: any.

        Raises:
            MessageError: unsigned, altered, taken from another job or pool, another entry point, or a newer message.
        """
        call = self.open_json(PURPOSE_JOB, payload)
        try:
            entry_point, _, (signed_for, raw), _ = call
        except (TypeError, ValueError):
            raise MessageError(f"job {job_id} holds no ticket") from None
        if entry_point != ENTRY_POINT:
            raise MessageError(f"job {job_id} asks for the function {entry_point!r}; only {ENTRY_POINT} may be called")
        if signed_for != job_id:
            raise MessageError(f"job {job_id} carries the ticket of job {signed_for}: it was replayed")
        _check_wire("ticket", raw)
        ticket = Ticket.from_json(raw)
        if job_id != job_id_of(ticket.submission_id, ticket.number):
            raise MessageError(f"job {job_id} carries the ticket of trial {ticket.number} of {ticket.submission_id}")
        if pool is not None and ticket.pool != pool:
            raise MessageError(f"job {job_id} was signed for the pool {ticket.pool!r}, not for {pool!r}")
        return ticket


def job_id_of(submission_id: str, number: int) -> str:
    """Return the id of the RQ job of a trial. Letters, digits, '-' and '_' only, as RQ wants it."""
    return f"{submission_id}-{number}"


def sign_spec(signer: Signer, spec: SubmissionSpec) -> str:
    """Return a submission as the signed text that is kept beside the study."""
    return signer.sign_json(PURPOSE_SPEC, spec.to_json()).decode()


def open_spec(signer: Signer, submission_id: str, text: str) -> SubmissionSpec:
    """Check a stored submission and return it.

    Raises:
        MessageError: unsigned, altered, copied from another submission, or written by a newer version.
    """
    raw = signer.open_json(PURPOSE_SPEC, text.encode())
    _check_wire("submission", raw)
    spec = SubmissionSpec.from_json(raw)
    if spec.submission_id != submission_id:
        raise MessageError(f"submission {submission_id} carries the text of submission {spec.submission_id}")
    return spec


def _check_wire(what: str, raw: Any) -> None:
    wire = raw.get("wire") if isinstance(raw, dict) else None
    if not isinstance(wire, int):
        raise MessageError(f"a {what} does not say its wire format")
    if wire > WIRE_VERSION:
        raise MessageError(f"a {what} has wire format {wire}, this side knows {WIRE_VERSION}; upgrade vrampool here")


# ---- the secret ------------------------------------------------------------------------------------


def secret_path(settings: Settings) -> Path:
    """Return where the secret is kept when it is not given by value."""
    return settings.secret_file or settings.state_dir / SECRET_FILE_NAME


def load_secret(settings: Settings, *, create: bool) -> Signer:
    """Return a signer with the pool's secret.

    Args:
        settings: `secret` wins over `secret_file`.
        create: Make the file where there is none; for the process that starts a local pool.

    Raises:
        SettingsError: no secret, an empty or short one, or a file that others may read.
    """
    if settings.secret is not None:
        return Signer(settings.secret.strip().encode())
    path = secret_path(settings)
    try:
        return Signer(_read_secret(path))
    except FileNotFoundError:
        if not create:
            raise SettingsError(
                f"no secret in {path}: start a pool on this host first, "
                "or give the pool's own with --secret-file or VRAMPOOL_SECRET"
            ) from None
    _make_secret(path)
    return Signer(_read_secret(path))


def _read_secret(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO put there must not hang us
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SettingsError(
            f"cannot read the secret file {path}: {error.strerror}; choose another with --secret-file"
        ) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError(f"the secret file {path} is not a file")
        if _too_open(status):
            mode = stat.S_IMODE(status.st_mode)
            raise SettingsError(f"the secret file {path} has mode {mode:04o}, others may read it: chmod 600 {path}")
        secret = os.read(handle, 4096).strip()
    finally:
        os.close(handle)
    if not secret:
        raise SettingsError(f"the secret file {path} is empty: remove it, or write one with `openssl rand -hex 32`")
    return secret


def _too_open(status: os.stat_result) -> bool:
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o027:
        return True
    # Kubernetes mounts a secret for a plain user as root's file, readable by the pod's own group.
    mounted = status.st_uid == 0 and os.geteuid() != 0
    return bool(status.st_mode & 0o040) and not mounted


def _make_secret(path: Path) -> None:
    """Write a new secret; when several processes do it at once, the first one's stays and is whole at any moment."""
    text = secrets.token_hex(32) + "\n"
    scratch = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".secret-")  # O_EXCL and mode 0600
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)  # fails where the file is there already, unlike a rename
    except OSError as error:
        raise SettingsError(
            f"cannot write the secret file {path}: {error.strerror}; choose another with --secret-file"
        ) from None
    finally:
        if scratch is not None:
            Path(scratch).unlink()
