"""Payloads that no coordinator wrote: each is put into Redis under a job of its own, which then names a real trial.

A forgery takes the pool's signer, the id it will lie under and the ticket of a trial that waits, and returns the fields
of a job's hash. Where the signer is used, it stands for what was signed for another purpose, job, pool or version.
"""

from __future__ import annotations

import json
import os
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vrampool.messages import ENTRY_POINT, WIRE_VERSION, Ticket
from vrampool.signing import PURPOSE_JOB, PURPOSE_SPEC, Signer

OTHER = Signer(b"a secret that this pool does not have")
Fields = dict[str, Any]


class Trap:
    """Makes a directory where it is unpickled."""

    def __init__(self, path: Path, words: str = "") -> None:
        self.path = path
        self.words = words

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (self.words,)) if self.words else (os.mkdir, (str(self.path),))


@dataclass(frozen=True)
class Forger:
    """What a forgery is made of."""

    signer: Signer
    job_id: str
    ticket: Ticket  #: of a trial that waits
    good: bytes  #: the payload that is signed for it, as it lies in Redis
    trap: Path  #: where something would be made if any of this ran

    @property
    def signed(self) -> bytes:
        return self.signer.sign_ticket(self.job_id, self.ticket)

    def call(self, *call: Any) -> bytes:
        """Sign a call as the pool's own: only the secret's holder could."""
        return self.signer.sign_json(PURPOSE_JOB, list(call))

    @property
    def mine(self) -> Ticket:
        """The ticket with the number of the job it lies under."""
        return replace(self.ticket, number=int(self.job_id.rpartition("-")[2]))


def data(payload: bytes, **fields: Any) -> Fields:
    return {"data": zlib.compress(payload), **fields}


def _swapped(payload: bytes, old: bytes, new: bytes) -> bytes:
    assert old in payload, (old, payload)
    return payload.replace(old, new)


def _deep(signer: Signer) -> bytes:
    body = b"[" * 30_000 + b"]" * 30_000
    return b":".join((b"v1", signer.sign(PURPOSE_JOB, body).encode(), body))


def _raw(signer: Signer, body: bytes) -> bytes:
    return b":".join((b"v1", signer.sign(PURPOSE_JOB, body).encode(), body))


NOT_SIGNED, ALTERED, UNREADABLE = "without a signature", "was altered, or signed with another secret", "cannot be read"

#: name: how it is made, what the worker says of it
FORGERIES: dict[str, tuple[Callable[[Forger], Fields], str]] = {
    # ---- without the secret: objects
    "a pickle": (lambda f: data(pickle.dumps(Trap(f.trap))), NOT_SIGNED),
    "a pickle that is not compressed": (lambda f: {"data": pickle.dumps(Trap(f.trap))}, NOT_SIGNED),
    "a pickle in letters": (lambda f: data(pickle.dumps(Trap(f.trap), protocol=0)), NOT_SIGNED),
    "a pickle that runs a shell": (lambda f: data(pickle.dumps(Trap(f.trap, f"mkdir {f.trap}"))), NOT_SIGNED),
    "RQ's own pickled call": (
        lambda f: data(pickle.dumps(("os.system", None, (f"mkdir {f.trap}",), {}))),
        NOT_SIGNED,
    ),
    "RQ's own call as JSON": (
        lambda f: data(json.dumps(["os.system", None, [f"mkdir {f.trap}"], {}]).encode()),
        NOT_SIGNED,
    ),
    "a pickle where the signed body would be": (
        lambda f: data(b":".join((b"v1", b"0" * 64, pickle.dumps(Trap(f.trap))))),
        ALTERED,
    ),
    # ---- without the secret: signatures
    "a ticket without a signature": (lambda f: data(json.dumps(f.ticket.to_json()).encode()), NOT_SIGNED),
    "a ticket signed with another secret": (lambda f: data(OTHER.sign_ticket(f.job_id, f.mine)), ALTERED),
    "a signature of zeros": (lambda f: data(b"v1:" + b"0" * 64 + b":" + f.signed[68:]), ALTERED),
    "a signature in capitals": (lambda f: data(b"v1:" + f.signed[3:67].upper() + f.signed[67:]), ALTERED),
    "a signature cut short": (lambda f: data(b"v1:" + f.signed[3:35] + f.signed[67:]), NOT_SIGNED),
    "a signature that is no ASCII": (lambda f: data(b"v1:" + b"\xff" * 64 + f.signed[67:]), ALTERED),
    "another format of signing": (lambda f: data(b"v2" + f.signed[2:]), "is signed in format b'v2'"),
    "no format of signing": (lambda f: data(f.signed[2:]), "is signed in format b''"),
    "the words of the signature alone": (lambda f: data(f.signed[:68]), ALTERED),
    # ---- without the secret: altered words
    "another trial_id": (lambda f: data(_swapped(f.signed, b'"trial_id":', b'"trial_id":9')), ALTERED),
    "a smaller request": (
        lambda f: data(_swapped(f.signed, str(f.ticket.vram_bytes).encode(), b"1")),
        ALTERED,
    ),
    "another study": (lambda f: data(_swapped(f.signed, f.ticket.study_name.encode(), b"else")), ALTERED),
    "another submission": (lambda f: data(_swapped(f.signed, f.ticket.submission_id.encode(), b"else")), ALTERED),
    "a space more": (lambda f: data(f.signed + b" "), ALTERED),
    "a letter less": (lambda f: data(f.signed[:-1]), ALTERED),
    # ---- replayed and swapped: signed by the pool, for something else
    "the very payload of the good job": (lambda f: {"data": f.good}, "it was replayed"),
    "the good job's id inside": (
        lambda f: data(f.signer.sign_ticket(f"{f.ticket.submission_id}-0", f.ticket)),
        "it was replayed",
    ),
    "the ticket of another trial": (
        lambda f: data(f.call(ENTRY_POINT, None, [f.job_id, f.ticket.to_json()], {})),
        "carries the ticket of trial 0",
    ),
    "the ticket of another pool": (
        lambda f: data(f.signer.sign_ticket(f.job_id, replace(f.mine, pool="other"))),
        "was signed for the pool 'other'",
    ),
    "a text signed as a submission": (
        lambda f: data(f.signer.sign_json(PURPOSE_SPEC, [ENTRY_POINT, None, [f.job_id, f.mine.to_json()], {}])),
        ALTERED,
    ),
    "a text signed as a command": (
        lambda f: data(f.signer.sign_json("command", [ENTRY_POINT, None, [f.job_id, f.mine.to_json()], {}])),
        ALTERED,
    ),
    "a text signed as a bundle": (
        lambda f: data(b"v1:" + f.signer.sign("bundle", f.signed[68:]).encode() + b":" + f.signed[68:]),
        ALTERED,
    ),
    # ---- even a holder of the secret gets only the one entry point
    "os.system": (
        lambda f: data(f.call("os.system", None, [f.job_id, f.mine.to_json()], {})),
        "asks for the function 'os.system'",
    ),
    "builtins.eval": (
        lambda f: data(f.call("builtins.eval", None, [f.job_id, f.mine.to_json()], {})),
        "asks for the function 'builtins.eval'",
    ),
    "a function that is no word": (
        lambda f: data(f.call(["os", "system"], None, [f.job_id, f.mine.to_json()], {})),
        "asks for the function",
    ),
    "arguments of another function": (
        lambda f: data(f.call("os.system", None, [f"mkdir {f.trap}"], {})),
        "holds no ticket",
    ),
    "a newer wire format": (
        lambda f: data(f.signer.sign_ticket(f.job_id, replace(f.mine, wire=WIRE_VERSION + 1))),
        f"has wire format {WIRE_VERSION + 1}",
    ),
    "a wire format in words": (
        lambda f: data(f.signer.sign_ticket(f.job_id, replace(f.mine, wire="1"))),  # type: ignore[arg-type]
        "does not say its wire format",
    ),
    "a ticket with nothing but its wire format": (
        lambda f: data(f.call(ENTRY_POINT, None, [f.job_id, {"wire": WIRE_VERSION}], {})),
        "lacks a field",
    ),
    "a ticket that is a list": (
        lambda f: data(f.call(ENTRY_POINT, None, [f.job_id, [1, 2, 3]], {})),
        "does not say its wire format",
    ),
    "a call that is a number": (lambda f: data(f.signer.sign_json(PURPOSE_JOB, 7)), "holds no ticket"),
    "a call of nothing": (lambda f: data(f.signer.sign_json(PURPOSE_JOB, [])), "holds no ticket"),
    "a signed body that is no JSON": (lambda f: data(_raw(f.signer, b"{not json")), "is not JSON"),
    "a signed body that is no UTF-8": (lambda f: data(_raw(f.signer, b'["\xff\xfe"]')), "is not JSON"),
    "a signed body 30 000 levels deep": (lambda f: data(_deep(f.signer)), "is not JSON"),
    # ---- sizes and bytes
    "nothing": (lambda f: {"data": b""}, NOT_SIGNED),
    "bytes that are no UTF-8": (lambda f: data(b"\xff\xfe\x00\x80" * 100), NOT_SIGNED),
    "zeros": (lambda f: data(b"\0" * 1000), NOT_SIGNED),
    "20 MB in 20 KB": (lambda f: data(b"v1:" + b"0" * 64 + b":" + b"[" * 20_000_000), "unpacks to more than"),
    "20 MB that are not compressed": (
        lambda f: {"data": b"v1:" + b"0" * 64 + b":" + b"x" * 20_000_000},
        "over the limit",
    ),
    "a stream cut short": (lambda f: {"data": zlib.compress(f.signed)[:-20]}, ALTERED),
    # ---- the plain fields, which Lua reads
    "another number in its field": (lambda f: data(f.signer.sign_ticket(f.job_id, f.mine), number=7), "was altered"),
    "another submission in its field": (
        lambda f: data(f.signer.sign_ticket(f.job_id, f.mine), submission="else"),
        "was altered",
    ),
    "a smaller request in its field": (
        lambda f: data(f.signer.sign_ticket(f.job_id, f.mine), vram_bytes=1),
        "was altered",
    ),
    "a number that is a word": (lambda f: data(f.signed, number="seven"), UNREADABLE),
    "a number of 5 000 digits": (lambda f: data(f.signed, number="9" * 5_000), UNREADABLE),
    "a submission that is no UTF-8": (lambda f: data(f.signed, submission=b"\xff\xfe"), UNREADABLE),
    "a time that is a word": (lambda f: data(f.signed, queued_at_ms="yesterday"), UNREADABLE),
}
#: Fields that make a job nobody takes: it lies in the list until `vrampool status --check --fix` removes it.
NEVER_TAKEN: dict[str, Fields] = {
    "an infinite request": {"vram_bytes": "1e999"},
    "a request that is no number": {"vram_bytes": "nan"},
    "a request in hexadecimal": {"vram_bytes": "0x10"},
    "a request of 5 000 digits": {"vram_bytes": "9" * 5_000},
    "a request that is a word": {"vram_bytes": "all"},
    "a request with a bad byte": {"vram_bytes": b"1\xff"},
}
#: Fields of RQ's own that name code: RQ would import and call it, or open it with pickle.
RQ_FIELDS: dict[str, Callable[[Path], Any]] = {
    "success_callback_name": lambda trap: "os.system",
    "failure_callback_name": lambda trap: "os.system",
    "stopped_callback_name": lambda trap: "os.system",
    "success_callback_timeout": lambda trap: "60",
    "meta": lambda trap: zlib.compress(pickle.dumps(Trap(trap))),
    "result": lambda trap: pickle.dumps(Trap(trap)),
    "dependency_ids": lambda trap: json.dumps(["else"]),
    "repeats_left": lambda trap: "9",
    "retries_left": lambda trap: "9",
    "timeout": lambda trap: "1",
    "func_name": lambda trap: "os.system",
    "webhooks": lambda trap: json.dumps([{"url": "http://127.0.0.1:1/"}]),
    "serializer": lambda trap: "pickle",
}
