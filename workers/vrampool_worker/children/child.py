"""The worker's hold on a child: spawn it, hand it its trial, hear what it says, end all of it.

Nothing here blocks and there are no threads. A `Child` lives on the selector and the timers of the worker's main loop::

    child = spawn(environment, modules, settings)
    child.register(selector, on_event, timers.at)
    while True:
        turn(selector, timers.wait_s(...))      # each descriptor is registered with a call as its data
        timers.run(time.monotonic())

and calls ``on_event(child, event)`` from there. What comes, in this order (`events` says what each holds)::

    IMPORTING                                        any number
    READY                                            imports are done
    STARTED                                          after `begin`: cap and seeds are set
    CALL, SAMPLE, STEP, HINT, RECAPPED, GROW         any number, in any order
    OUTCOME | MISBEHAVED                             at most one
    LOG_OVERFLOW                                     at most once, anywhere before GONE
    EXITED, GONE                                     always, once each

whatever happens: a crash, a kill, a keeper killed from outside. Only a process that the kernel cannot kill holds up
EXITED or GONE; then the worker quarantines the device.

Only the main thread may spawn: a keeper is ended when the *thread* that started it ends.
"""

from __future__ import annotations

import itertools
import os
import selectors
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vrampool.errors import MessageError
from vrampool.framing import encode, encode_bytes
from vrampool.messages import ChildFrame, ChildStart, Outcome
from vrampool.settings import Settings
from vrampool_worker import process_tree
from vrampool_worker.children import orphans
from vrampool_worker.children.control import ControlIntake
from vrampool_worker.children.events import Event, EventKind
from vrampool_worker.children.forkserver import ForkServer
from vrampool_worker.children.frames import to_event
from vrampool_worker.children.importing import Importing
from vrampool_worker.children.intake import FrameIntake, OutputIntake
from vrampool_worker.children.launch import Launched, clear_scratch, launch, scratch_folder
from vrampool_worker.children.log import ChildLog

__all__ = ["Child", "Event", "EventKind", "clear_scratch", "spawn"]

#: After its outcome a child has so long for threads, exit handlers and its own exit; it bounds itself to less.
EXIT_S = 15.0
#: A keeper that does not answer an order to kill within this time is killed itself.
KEEPER_S = 2.0
LOG_PAUSE_S = 1.0
_SWEEP_PAUSE_S = 0.01
_REAP_PAUSE_S = 0.1

OnEvent = Callable[["Child", Event], None]
At = Callable[[float, Callable[[], None]], None]

_numbers = itertools.count(1)


def spawn(
    environment: Mapping[str, str],
    modules: Sequence[str],
    settings: Settings,
    *,
    python: str = sys.executable,
    server: ForkServer | None = None,
) -> Child:
    """Start a child. It runs from now on, and says nothing before `register`.

    Args:
        environment: All of its environment, the device's variables included.
        modules: Imported ahead, as far as they are installed.
        settings: `state_dir` (scratch directories) and `log_bytes` are used.
        python: Interpreter to run.
        server: Forks the process, when it can; otherwise it is spawned.

    Raises:
        OSError: no process, descriptor or memory is left; nothing stays behind.
    """
    scratch = scratch_folder(settings.state_dir) / f"{os.getpid()}-{next(_numbers)}"
    keepers = orphans.of_this_process()
    launched = server.launch(str(scratch)) if server is not None else None
    forked = launched is not None
    launched = launched or launch(environment, modules, str(scratch), python)
    keepers.keep(launched.process.pid)
    return Child(launched, ChildLog(settings.log_bytes), forked=forked, bare=not forked and not modules)


class Child:
    """One process of one trial, with its keeper above it. Made by `spawn`; times are of the monotonic clock.

    Attributes:
        keeper_pid: The process above the trial: all of the trial is below it.
        pid: The trial's process; None until READY.
        preload_s: What its imports took; 0 until READY, and for one that was forked with them.
        start_s: From its start until READY; 0 until then.
        importing: What it imports, until READY.
        forked: Whether it was forked from a process with everything imported.
        bare: Whether nothing is imported ahead of its trial.
        outcome: How the objective ended; None until OUTCOME.
        log: What it prints.
    """

    def __init__(self, launched: Launched, log: ChildLog, *, forked: bool = False, bare: bool = False) -> None:
        self.forked = forked
        self.bare = bare
        self.keeper_pid = launched.process.pid
        self.pid: int | None = None
        self.preload_s = 0.0
        self.start_s = 0.0
        self.importing: Importing | None = None
        self.ready_at_s: float | None = None
        self.outcome: Outcome | None = None
        self.log = log
        self.spawned_at_s = time.monotonic()
        self.begun_at_s: float | None = None
        self.ending_since_s: float | None = None  #: killed, or its process gone and what it started not yet
        self.exited = False
        self.gone = False
        self._launched = launched
        self._started_ticks = process_tree.started_at(launched.process.pid) or 0
        self._closed = True  #: until it is registered
        self._overflow_told = False
        self._log_due = False

    @property
    def ready(self) -> bool:
        """Whether its imports are done and it can begin at once."""
        return self.pid is not None and not self.exited

    def log_tail(self) -> str:
        """Return the end of what it printed, as text."""
        return self.log.tail()

    def register(self, selector: selectors.BaseSelector, on_event: OnEvent, at: At) -> None:
        """Join a main loop. Once, before anything else.

        Args:
            selector: Descriptors are registered with a call as `data`, which takes the mask.
            on_event: Called from within those calls and from timers.
            at: ``at(when_s, call)`` has the loop make a call at a time of the monotonic clock.
        """
        ends = self._launched
        self._closed = False
        self._on_event = on_event
        self._at = at
        self._frames = FrameIntake(ends.frames, selector, self._on_frames)
        self._output = OutputIntake(ends.output_fd, self.log, selector, self._on_output)
        self._control = ControlIntake(ends.control, ends.pidfd, selector, self._on_control, self._on_keeper_end)

    # ---- orders --------------------------------------------------------------------------------------

    def begin(self, start: ChildStart, bundle: bytes | None, log_path: Path) -> None:
        """Hand over the trial. Once for each child, before or after READY."""
        assert self.begun_at_s is None, "a child runs one trial"
        self.begun_at_s = time.monotonic()
        if self._closed:  # it died while it waited; that is told by its events
            return
        self.log.open(log_path)
        self._send({"t": ChildFrame.START, "start": {**start.to_json(), "has_bundle": bundle is not None}})
        if bundle is not None:
            self._frames.send(encode_bytes(bundle))

    def reply(self, call_id: int, *, value: Any = None, error: Mapping[str, str] | None = None) -> None:
        """Answer a call; `error` as `trial_server.describe_error` makes it. To a dead child it goes nowhere."""
        answer = {"ok": True, "value": value} if error is None else {"ok": False, "error": dict(error)}
        self._send({"t": ChildFrame.REPLY, "id": call_id, **answer})

    def recap(self, cap_bytes: int) -> None:
        """Ask for another cap; RECAPPED tells what it has become."""
        self._send({"t": ChildFrame.RECAP, "cap_bytes": cap_bytes})

    def stay(self, reason: str) -> None:
        """Answer a wish to grow: no, and why."""
        self._send({"t": ChildFrame.STAY, "reason": reason})

    def ask_stop(self) -> None:
        """Ask the objective to end: `Stopped` is raised in it. Whoever asks kills it when it does not."""
        self._control.order(b"t")

    def kill(self) -> None:
        """Kill the trial's process; its keeper then ends the rest."""
        if not self.exited and not self._closed:
            self._end_begins()
            self._control.order(b"k")
            self._at(time.monotonic() + KEEPER_S, self._check_keeper)

    def _end_begins(self) -> None:
        if self.ending_since_s is None:
            self.ending_since_s = time.monotonic()

    def close(self) -> None:
        """Close everything at once. What still lives is killed by its keeper, which sees the end of its socket."""
        if self._closed:
            return
        self._closed = True
        self._frames.close()
        self._output.close()
        self._control.close()
        self.log.close()
        self._reap()

    def _send(self, frame: dict[str, Any]) -> None:
        self._frames.send(encode(frame))

    # ---- what the loop calls -------------------------------------------------------------------------

    def _on_frames(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._frames.write()
        if mask & selectors.EVENT_READ:
            self._tell(self._hear(self._frames.read(time.monotonic())))
            self._resume_frames_later()

    def _resume_frames_later(self) -> None:
        if self._frames.due_s is not None:
            self._at(self._frames.due_s, self._resume_frames)

    def _resume_frames(self) -> None:
        if not self._frames.closed:
            self._tell(self._hear(self._frames.resume(time.monotonic())))
            self._resume_frames_later()

    def _on_output(self, mask: int) -> None:
        self._output.read(time.monotonic())
        if self._output.due_s is not None:
            self._at(self._output.due_s, self._resume_output)
        if not self._log_due and self.log.dirty:
            self._log_due = True
            self._at(time.monotonic() + LOG_PAUSE_S, self._flush_log)
        if self.log.overflowed and not self._overflow_told:
            self._overflow_told = True
            self._tell([Event(EventKind.LOG_OVERFLOW, {"kept_bytes": self.log.limit_bytes})])

    def _resume_output(self) -> None:
        if not self._output.closed:
            self._on_output(0)

    def _flush_log(self) -> None:
        self._log_due = False
        self.log.flush()

    def _on_control(self, mask: int) -> None:
        for line in self._control.read():
            if "status" in line:
                self._tell(self._exit(int(line["status"]), int(line["rusage"]["max_rss_bytes"])))
            elif line.get("gone"):
                self._finish()

    def _check_keeper(self) -> None:
        if not self.exited and not self._control.answered_kill:
            self._control.kill_keeper()

    def _on_keeper_end(self, mask: int) -> None:
        self._on_control(mask)  # its last words may not have been read yet
        if self._closed:
            return
        self._control.close()
        self._sweep()  # it was killed: what was below it has come up to this process

    def _sweep(self) -> None:
        if self._closed:
            return
        if orphans.of_this_process().sweep(self._started_ticks):
            self._tell(self._exit(None, None))
            self._finish()
        else:
            self._at(time.monotonic() + _SWEEP_PAUSE_S, self._sweep)

    # ---- what it says --------------------------------------------------------------------------------

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            self._on_event(self, event)

    def _hear(self, frames: Iterable[dict[str, Any] | bytes]) -> list[Event]:
        """Understand frames. One that is none of ours ends the child: nothing after it can be trusted."""
        found: list[Event] = []
        try:
            for frame in frames:
                if self.outcome is None:  # threads that outlive the objective may go on talking
                    found.append(to_event(frame))
                    self._note(found[-1])
        except (MessageError, KeyError, TypeError, ValueError) as error:
            self._frames.mute()
            self.kill()
            text = f"the trial's process sent what is no message of the pool: {type(error).__name__}: {error}"
            found.append(Event(EventKind.MISBEHAVED, {"text": text[:500]}))
        return found

    def _note(self, event: Event) -> None:
        if event.kind is EventKind.IMPORTING:
            self.importing = Importing(event.data["module"], event.data["pid"], time.monotonic())
        elif event.kind is EventKind.READY:
            self.importing = None
            self.pid, self.preload_s = event.data["pid"], event.data["preload_s"]
            self.ready_at_s = time.monotonic()
            self.start_s = self.ready_at_s - self.spawned_at_s
        elif event.kind is EventKind.OUTCOME:
            self.outcome = Outcome.from_json(dict(event.data))
            self._at(time.monotonic() + EXIT_S, self.kill)

    # ---- how it ends ---------------------------------------------------------------------------------

    def _exit(self, status: int | None, max_rss_bytes: int | None) -> list[Event]:
        if self.exited:
            return []
        found = self._hear(self._frames.drain())  # its outcome may still lie in the socket
        self._frames.close()
        self.exited = True
        self._end_begins()
        code = number = None
        if status is not None:
            code, number = (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), None)
        return [*found, Event(EventKind.EXITED, {"exit_code": code, "signal": number, "max_rss_bytes": max_rss_bytes})]

    def _finish(self) -> None:
        """Everything below the keeper is gone: what it printed is in the pipe, and nobody holds any of our ends."""
        if self.gone or self._closed:
            return
        self.gone = True
        self._output.drain()
        self.close()
        self._tell([Event(EventKind.GONE)])

    def _reap(self) -> None:
        """Wait for the keeper, which may still be removing the scratch directory."""
        if self._launched.process.poll() is None:
            self._at(time.monotonic() + _REAP_PAUSE_S, self._reap)
        else:
            orphans.of_this_process().forget(self.keeper_pid)
