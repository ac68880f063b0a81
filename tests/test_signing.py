"""Signatures: who made a message, what it is for, and which job it belongs to."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vrampool.errors import MessageError, SettingsError
from vrampool.messages import WIRE_VERSION, ObjectiveRef, SubmissionSpec, Ticket
from vrampool.settings import Settings
from vrampool.signing import Signer, job_id_of, load_secret, open_spec, secret_path, sign_spec

SIGNER = Signer(b"0123456789abcdef0123456789abcdef")
STRANGER = Signer(b"another secret, of the same length")
TICKET = Ticket("pool", "digits", "sub1", 7, 42, 6 * 1024**3)
JOB = job_id_of("sub1", 7)


def forge(call: object, signer: Signer = SIGNER) -> bytes:
    """Return a payload that a holder of the secret signed, whatever is in it."""
    return signer.sign_json("job", call)


# ---- tickets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("vram_bytes", [6 * 1024**3, None])
def test_a_ticket_comes_back_as_it_was_signed(vram_bytes):
    ticket = dataclasses.replace(TICKET, vram_bytes=vram_bytes)
    assert SIGNER.open_ticket(JOB, SIGNER.sign_ticket(JOB, ticket), pool="pool") == ticket


def test_a_ticket_signed_with_another_secret_is_refused():
    with pytest.raises(MessageError, match="another secret"):
        SIGNER.open_ticket(JOB, STRANGER.sign_ticket(JOB, TICKET))


@pytest.mark.parametrize("place", [0, 10, 70, 120, -5])
def test_a_ticket_altered_anywhere_is_refused(place):
    payload = bytearray(SIGNER.sign_ticket(JOB, TICKET))
    payload[place] ^= 1
    with pytest.raises(MessageError):
        SIGNER.open_ticket(JOB, bytes(payload))


def test_a_ticket_of_another_job_is_refused():
    payload = SIGNER.sign_ticket(job_id_of("sub1", 8), dataclasses.replace(TICKET, number=8))
    with pytest.raises(MessageError, match="sub1-7 carries the ticket of job sub1-8: it was replayed"):
        SIGNER.open_ticket(JOB, payload)


def test_a_ticket_that_names_another_trial_than_its_job_is_refused():
    payload = SIGNER.sign_ticket(JOB, dataclasses.replace(TICKET, number=8))
    with pytest.raises(MessageError, match="trial 8 of sub1"):
        SIGNER.open_ticket(JOB, payload)


def test_a_ticket_of_another_pool_is_refused():
    with pytest.raises(MessageError, match="signed for the pool 'pool', not for 'other'"):
        SIGNER.open_ticket(JOB, SIGNER.sign_ticket(JOB, TICKET), pool="other")


def test_a_ticket_in_a_newer_wire_format_is_refused_with_the_remedy():
    payload = SIGNER.sign_ticket(JOB, dataclasses.replace(TICKET, wire=WIRE_VERSION + 1))
    with pytest.raises(MessageError, match=f"wire format {WIRE_VERSION + 1}.*upgrade vrampool here"):
        SIGNER.open_ticket(JOB, payload)


def test_a_text_signed_in_another_format_is_refused_with_the_remedy():
    payload = b"v2" + SIGNER.sign_ticket(JOB, TICKET)[2:]
    with pytest.raises(MessageError, match=r"format b'v2'.*one vrampool version"):
        SIGNER.open_ticket(JOB, payload)


@pytest.mark.parametrize("payload", [b"", b"hello", b"v1:abc", b"v1:" + b"0" * 64, pickle.dumps(("os.system", "true"))])
def test_a_text_without_a_signature_is_refused(payload):
    with pytest.raises(MessageError, match="without a signature"):
        SIGNER.open_ticket(JOB, payload)


def test_a_signature_that_is_no_text_is_refused():
    with pytest.raises(MessageError, match="does not match"):
        SIGNER.open_ticket(JOB, b"v1:" + b"\xff" * 64 + b":[]")


def test_only_our_entry_point_may_be_called():
    payload = forge(["os.system", None, [JOB, TICKET.to_json()], {}])
    with pytest.raises(MessageError, match=r"'os.system'; only"):
        SIGNER.open_ticket(JOB, payload)


@pytest.mark.parametrize(
    "call", [None, {}, [], ["x"], [1, 2, [3, 4, 5], 6], ["vrampool_worker.child.run_trial", 0, 1, 2]]
)
def test_a_signed_text_that_is_no_ticket_is_refused(call):
    with pytest.raises(MessageError, match="holds no ticket"):
        SIGNER.open_ticket(JOB, forge(call))


@pytest.mark.parametrize("raw", [{}, {"wire": "1"}, {"wire": 1}, 5])
def test_a_ticket_that_lacks_a_field_is_refused(raw):
    with pytest.raises(MessageError):
        SIGNER.open_ticket(JOB, forge(["vrampool_worker.child.run_trial", None, [JOB, raw], {}]))


def test_what_is_signed_for_one_purpose_is_refused_for_another():
    body = json.dumps({"a": 1}).encode()
    signature = SIGNER.sign("bundle", body)
    SIGNER.verify("bundle", body, signature)
    with pytest.raises(MessageError):
        SIGNER.verify("job", body, signature)
    with pytest.raises(MessageError):
        SIGNER.open_json("submission", SIGNER.sign_json("job", {}))


def test_a_text_over_the_limit_is_not_even_hashed(monkeypatch):
    monkeypatch.setattr("vrampool.signing.SIGNED_LIMIT_BYTES", 100)
    monkeypatch.setattr(SIGNER, "sign", lambda *_: pytest.fail("hashed"))
    with pytest.raises(MessageError, match="over the limit"):
        SIGNER.open_json("job", b"v1:" + b"0" * 64 + b":" + b"x" * 100)


# ---- submissions -----------------------------------------------------------------------------------


def spec(**changes) -> SubmissionSpec:
    values = {
        "submission_id": "sub1",
        "study_name": "digits",
        "objective": ObjectiveRef("import", "m:f"),
        "n_trials": 5,
    }
    return SubmissionSpec(**{**values, **changes})


def test_a_submission_comes_back_as_it_was_signed():
    written = spec(points=({"x": 1.5},), catch=("builtins.ValueError",), env={"A": "b"})
    assert open_spec(SIGNER, "sub1", sign_spec(SIGNER, written)) == written


def test_a_submission_copied_altered_or_newer_is_refused():
    with pytest.raises(MessageError, match="carries the text of submission sub1"):
        open_spec(SIGNER, "sub2", sign_spec(SIGNER, spec()))
    with pytest.raises(MessageError, match="altered"):
        open_spec(SIGNER, "sub1", sign_spec(SIGNER, spec()).replace('"n_trials":5', '"n_trials":6'))
    with pytest.raises(MessageError, match="upgrade"):
        open_spec(SIGNER, "sub1", sign_spec(SIGNER, spec(wire=WIRE_VERSION + 1)))


# ---- the secret ------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(state_dir=tmp_path / "state")


def test_a_secret_is_made_once_for_its_owner_alone_and_found_again(settings):
    first = load_secret(settings, create=True)
    path = secret_path(settings)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_text().strip()) == 64
    assert os.listdir(path.parent) == ["secret"], "no scratch file stays"
    second = load_secret(settings, create=False)
    second.open_ticket(JOB, first.sign_ticket(JOB, TICKET))
    assert load_secret(settings, create=True).sign("a", b"b") == first.sign("a", b"b")


def test_processes_that_make_it_at_once_agree_on_one(settings):
    code = (
        "import sys; from pathlib import Path; from vrampool.settings import Settings; "
        "from vrampool.signing import load_secret; sys.stdin.read(1); "
        "print(load_secret(Settings(state_dir=Path(sys.argv[1])), create=True).sign('a', b'b'))"
    )
    command = [sys.executable, "-c", code, str(settings.state_dir)]
    several = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)]
    for process in several:
        process.stdin.write(b"g")
        process.stdin.flush()
    assert len({process.communicate(timeout=60)[0] for process in several}) == 1


def test_threads_that_make_it_at_once_agree_on_one(settings):
    start, found = threading.Barrier(8), []

    def make() -> None:
        start.wait()
        found.append(load_secret(settings, create=True).sign("a", b"b"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_no_secret_and_none_wanted_names_the_remedies(settings):
    with pytest.raises(SettingsError, match=r"no secret in .*--secret-file or VRAMPOOL_SECRET"):
        load_secret(settings, create=False)
    assert not settings.state_dir.exists()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_may_read_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    path.write_text("x" * 64)
    path.chmod(mode)
    with pytest.raises(SettingsError, match=f"mode {mode:04o}.*chmod 600"):
        load_secret(Settings(secret_file=path), create=True)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_secret_for_its_owner_alone_is_accepted(tmp_path, mode):
    path = tmp_path / "secret"
    path.write_text("x" * 64 + "\n")
    path.chmod(mode)
    assert load_secret(Settings(secret_file=path), create=False).sign("a", b"b") == Signer(b"x" * 64).sign("a", b"b")


@pytest.mark.parametrize(("content", "text"), [("", "is empty"), (" \n", "is empty"), ("short", "shorter than 16")])
def test_an_empty_or_short_secret_is_refused(tmp_path, content, text):
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match=text):
        load_secret(Settings(secret_file=path), create=True)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    """A FIFO would hang whoever opens it to read."""
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(SettingsError, match="is not a file"):
            load_secret(Settings(secret_file=path), create=True)


def test_a_secret_that_cannot_be_read_or_written_names_the_option(tmp_path):
    (tmp_path / "file").write_text("")
    for path, what in ((tmp_path / "file" / "secret", "read"), (Path("/proc/nowhere/secret"), "write")):
        with pytest.raises(SettingsError, match=f"cannot {what} the secret file .*--secret-file"):
            load_secret(Settings(secret_file=path), create=True)


def test_a_mounted_secret_of_root_for_the_pod_s_group_is_accepted(tmp_path, monkeypatch):
    """Kubernetes gives a plain user a secret as root's file with the pod's group and mode 0440."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of root's")
    path = tmp_path / "secret"
    path.write_text("x" * 64)
    path.chmod(0o440)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    load_secret(Settings(secret_file=path), create=False)
    path.chmod(0o444)
    with pytest.raises(SettingsError, match="mode 0444"):
        load_secret(Settings(secret_file=path), create=False)


def test_a_secret_given_by_value_wins_over_the_file(tmp_path):
    signer = load_secret(Settings(secret="y" * 32, secret_file=tmp_path / "none"), create=False)
    assert signer.sign("a", b"b") == Signer(b"y" * 32).sign("a", b"b")


def test_a_signer_does_not_show_its_secret():
    signer = Signer(b"do-not-print-me-anywhere")
    assert "do-not" not in f"{signer!r} {signer}"
