"""Events between coordinator, workers and clients: hints that something changed, and signed commands.

A hint says no more than "look again": it may get lost, and whoever may publish may forge it, so every listener also
looks by itself from time to time. A command ("drain", "pause") is signed with the pool's secret and dated.

There are three kinds of channel, as Redis works for each listener (docs/scale.md): one for what concerns everybody;
one for news that a large pool makes all the time and that no worker needs, for the coordinator and for clients; and
one for each worker, on which it is called to trials.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import redis
from redis.exceptions import NoPermissionError

from vrampool.errors import MessageError
from vrampool.queueing.connection import TransientRedisError, talks_to_redis
from vrampool.queueing.names import Names
from vrampool.signing import Signer

_log = logging.getLogger("vrampool.queueing")
_PURPOSE_COMMAND = "command"
#: A command is refused when it is older, so that it cannot be repeated tomorrow.
COMMAND_LIFE_S = 60.0
#: What nobody reads is dropped from here on, oldest first.
BACKLOG = 4_096
#: A subscription says so when it had lost the connection: events may be missing.
RECONNECTED = "reconnected"
#: The event that tells of room on a device. It is for the coordinator; workers have no use for it.
ROOM = "room"
#: The event that calls workers to trials that wait. Only the coordinator sends it, to all of them or to each by name.
ENQUEUED = "enqueued"
_SUBSCRIBE_WAIT_S = 2.0
_LOOK_S = 0.5


def hint(kind: str) -> str:
    """Return the message of a hint that something of this kind changed, for a script that publishes it."""
    return json.dumps({"kind": kind})


def calls(event: dict[str, Any]) -> bool:
    """Return whether an event that a worker heard is a reason to ask for a trial.

    That a trial ended, or left room, makes none of those that wait fit elsewhere: in a large pool that happens all the
    time. It is news, which workers do not hear; whoever may publish may send it to them all the same.
    """
    return event.get("kind") not in ("told", ROOM)


class Events:
    """One pool's channels.

    Args:
        connection: Redis. A subscription takes a connection of its own from its pool of connections.
        pool: The pool's name.
        signer: Signs and checks commands; without it none is sent or received.
    """

    def __init__(self, connection: redis.Redis, pool: str, signer: Signer | None = None) -> None:
        self._connection = connection
        self._names = Names(pool)
        self._signer = signer

    def publish(self, fields: dict[str, Any]) -> None:
        """Tell everybody that something changed; nobody hears it while Redis is away. Round trips: 1.

        What changed is in the storage, and those who need to know look by themselves: for whoever changed it a hint
        that got lost is no failure.
        """
        self._send(self._names.events, fields)

    def tell(self, fields: dict[str, Any]) -> None:
        """Tell those who watch the pool, the coordinator and clients, but no worker; else as `publish`."""
        self._send(self._names.news, fields)

    def _send(self, channel: str, fields: dict[str, Any]) -> None:
        try:
            self._publish(channel, json.dumps(fields, separators=(",", ":")))
        except TransientRedisError as error:
            _log.debug("a hint got lost: %s", error)

    @talks_to_redis
    def _publish(self, channel: str, message: str) -> None:
        self._connection.publish(channel, message)

    def poke(self) -> None:
        """Wake everybody who waits. Round trips: 1."""
        self.publish({"kind": "poke"})

    @talks_to_redis
    def command(self, command: str, **fields: Any) -> int:
        """Send a signed command; return how many listen. Round trips: 2.

        Args:
            command: What is to be done: "drain", "pause", "resume" ...
            fields: With what; "worker" names the one that is meant.
        """
        if self._signer is None:
            raise MessageError("a command needs the pool's secret: give --secret-file or VRAMPOOL_SECRET")
        seconds, micros = self._connection.time()
        message = {**fields, "command": command, "at": seconds + micros / 1e6}
        return int(self._connection.publish(self._names.events, self._signer.sign_json(_PURPOSE_COMMAND, message)))

    def subscribe(self, worker: str | None = None) -> Subscription:
        """Listen from now on. It never raises: a subscription outlives any absence of Redis.

        Args:
            worker: Its name, for a worker: it hears what concerns everybody, and its own calls. None: all the news
                besides, and no calls.
        """
        own = self._names.news if worker is None else self._names.calls(worker)
        return Subscription(self._connection, (self._names.events, own), self._signer)


class Subscription:
    """What arrived on some channels, read by a thread of its own: a main loop never waits for Redis.

    `fileno` is readable while events wait and stays the same over reconnections. Use it as a context manager.
    """

    def __init__(self, connection: redis.Redis, channels: Sequence[str], signer: Signer | None) -> None:
        self._connection = connection
        self._channels = tuple(channels)  #: the first one is for everybody
        self._signer = signer
        self._events: deque[dict[str, Any]] = deque(maxlen=BACKLOG)
        self._lock = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Event()
        self._subscribed = threading.Event()
        self._server_minus_monotonic_s: float | None = None
        self._thread = threading.Thread(target=self._listen, name="vrampool-events", daemon=True)
        self._thread.start()
        self._subscribed.wait(_SUBSCRIBE_WAIT_S)

    def fileno(self) -> int:
        return self._fd

    def read(self) -> list[dict[str, Any]]:
        """Return what arrived, without waiting."""
        with self._lock:
            if self._fd >= 0:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._fd)
            events = list(self._events)
            self._events.clear()
        return events

    def wait(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return what arrived, waiting for the first event at most `timeout_s`."""
        if self._fd < 0:
            return []
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(max(0.0, timeout_s) * 1000)
        return self.read()

    def close(self) -> None:
        """End it. The thread follows within half a second; nobody waits for it."""
        self._closing.set()
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the thread --------------------------------------------------------------------------------

    def _listen(self) -> None:
        pause_s = 0.1
        pubsub = self._connection.pubsub()  # type: ignore[no-untyped-call]
        try:
            while not self._closing.is_set():
                try:
                    if not pubsub.subscribed:
                        pubsub.subscribe(*self._channels)
                    message = pubsub.get_message(timeout=_LOOK_S)
                    if message is not None:
                        self._receive(message)
                    pause_s = 0.1
                except NoPermissionError as error:
                    pubsub.close()
                    pubsub = self._without_own(error)
                except Exception as error:  # Redis is away, or the owner closed the connection under us: it goes on
                    if not self._closing.is_set():
                        _log.debug("events: %s; again in %.1f s", error, pause_s)
                    self._closing.wait(pause_s)
                    pause_s = min(pause_s * 2, 2.0)
        finally:
            with contextlib.suppress(Exception):  # the pool of connections may be closed already
                pubsub.close()

    def _without_own(self, error: NoPermissionError) -> Any:
        """Go on with what concerns everybody: a user of an older `deploy/redis/users.acl` may not have the others."""
        if len(self._channels) > 1:
            _log.warning("what concerns this process alone is not heard, so it starts later: %s", error)
            self._channels = self._channels[:1]
        else:
            self._closing.wait(2.0)
        return self._connection.pubsub()  # type: ignore[no-untyped-call]

    def _receive(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            if message["data"] < len(self._channels):
                return  # the others follow
            seconds, micros = self._connection.time()
            self._server_minus_monotonic_s = seconds + micros / 1e6 - time.monotonic()
            if self._subscribed.is_set():
                self._put({"kind": RECONNECTED})
            self._subscribed.set()
        elif message["type"] == "message":
            event = self._read_event(message["data"])
            if event is not None:
                self._put(event)

    def _read_event(self, data: bytes) -> dict[str, Any] | None:
        if not data.startswith(b"{"):
            return self._read_command(data)
        try:
            event: dict[str, Any] = json.loads(data)
        except ValueError:
            return None
        if "command" in event:  # only a signed message may command
            _log.warning("an unsigned command was refused")
            return None
        return event

    def _read_command(self, data: bytes) -> dict[str, Any] | None:
        if self._signer is None:
            return None
        try:
            message: dict[str, Any] = self._signer.open_json(_PURPOSE_COMMAND, data)
            at_s = float(message["at"])
        except (MessageError, TypeError, KeyError, ValueError) as error:
            _log.warning("a command was refused: %s", error)
            return None
        now_s = time.monotonic() + (self._server_minus_monotonic_s or 0.0)
        if abs(now_s - at_s) > COMMAND_LIFE_S:
            _log.warning("the command %s was refused: it is older than %.0f s", message["command"], COMMAND_LIFE_S)
            return None
        return message

    def _put(self, event: dict[str, Any]) -> None:
        with self._lock:
            if self._fd >= 0:
                self._events.append(event)
                os.eventfd_write(self._fd, 1)
