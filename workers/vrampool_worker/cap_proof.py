"""`vrampool doctor --gpu`: shows that a child which takes too much fails at its own cap, and its neighbour goes on."""

from __future__ import annotations

import os
import selectors
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import optuna

from vrampool.errors import VrampoolError
from vrampool.messages import ChildStart, MemorySample, OutcomeKind
from vrampool.objectives import resolve
from vrampool.settings import Settings
from vrampool.units import MIB, format_bytes
from vrampool_worker import proof_objectives
from vrampool_worker.children.child import Child, spawn
from vrampool_worker.children.events import Event, EventKind
from vrampool_worker.devices import Device, DeviceReading, find_devices
from vrampool_worker.devices.deadline import call_within
from vrampool_worker.environment import child_environment
from vrampool_worker.lanes import Timers, turn
from vrampool_worker.ledger.overhead import FIRST_BYTES
from vrampool_worker.ledger.strangers import NOISE_BYTES
from vrampool_worker.trial_server import TrialServer, describe_error

Found = tuple[str, str, str]
#: What each of the two may take of torch's allocator, or of host memory.
CAP_BYTES = 384 * MIB
#: A cap is held to this: what an allocator rounds to.
ROUNDING_BYTES = 32 * MIB
START_S = 120.0  #: an import of torch over a network drive
RUN_S = 60.0
BACK_S = 15.0
_LOOK_S = 0.1
#: The neighbour must have done so many steps after the other has failed.
_STEPS_AFTER = 3


class _NotShownError(Exception):
    """Raised when the proof cannot be made, or fails; the text says why."""


@dataclass
class _Party:
    """One of the two children, and what was heard of it."""

    child: Child
    server: TrialServer
    events: list[Event] = field(default_factory=list)
    sample: MemorySample = field(default_factory=MemorySample)
    steps: int = 0
    measured_bytes: int = 0  #: the most the device showed of it; 0 where it does not tell

    @property
    def gone(self) -> bool:
        return any(event.kind is EventKind.GONE for event in self.events)

    def hear(self, child: Child, event: Event) -> None:
        self.events.append(event)
        if event.kind is EventKind.SAMPLE:
            self.sample = MemorySample.from_json(event.data)
        elif event.kind is EventKind.CALL:
            self.steps += event.data["name"] == "report"
            try:
                value = self.server.handle(event.data["name"], event.data["args"])
            except Exception as error:
                child.reply(event.data["id"], error=describe_error(error))
            else:
                child.reply(event.data["id"], value=value)


def prove(settings: Settings) -> Iterator[Found]:
    """Yield (name, "ok" | "warn" | "fail", text) for each device that `settings.gpu` asks for."""
    devices = find_devices(settings, os.environ)
    if settings.gpu.lower() == "all" and not any(device.kind == "cuda" for device in devices):
        yield (
            "gpu",
            "warn",
            "there is no NVIDIA GPU here that can be used; the cap is shown on the CPU, with host memory",
        )
    for device in devices:
        name = f"cap on {device.label}"
        try:
            obstacle = _obstacle(device, settings)
            if obstacle:
                yield name, "warn", f"not shown: {obstacle}"
            else:
                yield name, "ok", _Proof(device, settings).run()
        except _NotShownError as error:
            yield name, "fail", str(error)


def _obstacle(device: Device, settings: Settings) -> str:
    """Say why it cannot be tried here; empty when it can."""
    if device.kind == "cuda":
        import importlib.util

        if importlib.util.find_spec("torch") is None:
            return "torch is not installed, and the cap is one on its allocator; pip install 'vrampool[torch]'"
    free_bytes = _read(device, settings).free_bytes
    wanted_bytes = 2 * _lease_bytes(device) + 256 * MIB
    if free_bytes is not None and free_bytes < wanted_bytes:
        return f"{format_bytes(wanted_bytes)} must be free for it, {format_bytes(free_bytes)} are"
    return ""


def _lease_bytes(device: Device) -> int:
    return CAP_BYTES + (FIRST_BYTES if device.kind == "cuda" else 0)


def _read(device: Device, settings: Settings) -> DeviceReading:
    try:
        return call_within(settings.nvml_timeout_s, device.read, name="vrampool-proof")
    except (TimeoutError, VrampoolError) as error:
        raise _NotShownError(f"{device.label} cannot be read: {error}") from None


class _Proof:
    """One proof on one device, with a main loop as small as it can be."""

    def __init__(self, device: Device, settings: Settings) -> None:
        self._device = device
        self._settings = settings
        self._timers = Timers()
        self._parties: list[_Party] = []
        self._looking = True
        self._looked_s = 0.0

    def run(self) -> str:
        """Run both children to their ends and return what was seen.

        Raises:
            _NotShownError: the cap did not hold, the neighbour was harmed, or it could not be tried.
        """
        before = _read(self._device, self._settings)
        with tempfile.TemporaryDirectory(prefix="vp-") as folder, selectors.DefaultSelector() as self._selector:
            self._folder = Path(folder)
            try:
                text = self._show()
            finally:
                self._looking = False
                for party in self._parties:
                    party.child.kill()
                self._turn_until(lambda: all(party.gone for party in self._parties), RUN_S)
        return f"{text}; {self._awaited_back(before)}"

    def _show(self) -> str:
        neighbour = self._start("neighbour")
        self._until(lambda: neighbour.steps or neighbour.child.exited, START_S, "the neighbour's first step")
        if not neighbour.steps:
            raise _NotShownError(f"the neighbour did not start: {self._how(neighbour)}")
        greedy = self._start("greedy")
        self._until(lambda: greedy.gone, START_S + RUN_S, "the end of the one that takes too much")
        text = self._judge(greedy)
        steps = neighbour.steps
        self._until(lambda: neighbour.steps >= steps + _STEPS_AFTER or neighbour.gone, RUN_S, "more of the neighbour")
        overhead = self._overhead(neighbour)
        (self._folder / "end").touch()
        self._until(lambda: neighbour.gone, RUN_S, "the neighbour's end")
        outcome = neighbour.child.outcome
        if outcome is None or outcome.kind != OutcomeKind.VALUE or outcome.values != [1.0]:
            raise _NotShownError(f"the neighbour was harmed: {self._how(neighbour)}")
        return f"{text}, and its neighbour went on ({steps} steps before, {neighbour.steps - steps} after){overhead}"

    def _start(self, name: str) -> _Party:
        settings = self._settings.with_changes(state_dir=self._folder / "state")
        child = spawn(child_environment(os.environ, self._device, settings), (), settings)
        reference, _ = resolve(f"{proof_objectives.__name__}:{name}")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study()
        party = _Party(child, TrialServer(study, study.ask()))
        self._parties.append(party)
        child.register(self._selector, party.hear, self._timers.at)
        variables = {
            proof_objectives.DEVICE: self._device.kind,
            proof_objectives.CAP: str(CAP_BYTES),
            proof_objectives.END: str(self._folder / "end"),
        }
        start = ChildStart(
            objective=reference,
            trial=party.server.snapshot(),
            env=variables,
            device=self._device.kind,
            lease_bytes=_lease_bytes(self._device),
            cap_bytes=CAP_BYTES,
            total_bytes=self._device.total_bytes,
            sample_interval_s=0.1,
        )
        child.begin(start, None, self._folder / f"{name}.log")
        return party

    def _judge(self, greedy: _Party) -> str:
        outcome = greedy.child.outcome
        if outcome is None or outcome.kind != OutcomeKind.OOM:
            raise _NotShownError(
                f"a trial that took more than its lease was not stopped by its cap: {self._how(greedy)}"
            )
        lease_bytes = _lease_bytes(self._device)
        sample = MemorySample.from_json(outcome.sample) if outcome.sample else greedy.sample
        reserved_bytes = sample.max_torch_reserved_bytes or 0
        if reserved_bytes > CAP_BYTES + ROUNDING_BYTES:
            raise _NotShownError(f"its allocator held {format_bytes(reserved_bytes)}, over the cap of {_cap()}")
        # On the CPU the limit counts what is asked for, and libraries ask for more than they touch: it leaves room.
        if self._device.kind == "cuda" and greedy.measured_bytes > lease_bytes + NOISE_BYTES:
            raise _NotShownError(
                f"the device showed {format_bytes(greedy.measured_bytes)} of it, over the lease of "
                f"{format_bytes(lease_bytes)}"
            )
        if self._device.kind == "cpu":
            return f"a trial that took too much failed at its cap of {_cap()} and the room for libraries beside it"
        seen = f"; the device showed at most {format_bytes(greedy.measured_bytes)}" if greedy.measured_bytes else ""
        lease = f" of a lease of {format_bytes(lease_bytes)}" if lease_bytes != CAP_BYTES else ""
        return f"a trial that took too much failed at its cap of {_cap()}{lease}{seen}"

    def _overhead(self, neighbour: _Party) -> str:
        reserved_bytes = neighbour.sample.torch_reserved_bytes
        if not reserved_bytes or not neighbour.measured_bytes:
            return ""
        return f"; the driver takes {format_bytes(neighbour.measured_bytes - reserved_bytes)} for a process"

    def _how(self, party: _Party) -> str:
        outcome = party.child.outcome
        if outcome is None:
            return f"it ended without an outcome; {party.child.log_tail().strip() or 'it printed nothing'}"
        return f"{outcome.kind} {outcome.values or ''} {outcome.type_name} {outcome.text}".strip()[:500]

    def _awaited_back(self, before: DeviceReading) -> str:
        """Wait until the device holds no more than before, where its use is that of its processes."""
        started_s = time.monotonic()
        if self._device.kind != "cuda" or before.used_bytes is None:
            return "both processes are gone, and their memory with them"
        while True:
            used_bytes = _read(self._device, self._settings).used_bytes
            back_s = time.monotonic() - started_s
            if used_bytes is not None and used_bytes <= before.used_bytes + NOISE_BYTES:
                return f"their memory was seen back after {back_s:.1f} s"
            if back_s > BACK_S:
                left = format_bytes((used_bytes or 0) - before.used_bytes)
                return f"{left} more than before are in use {back_s:.0f} s later: others may have started meanwhile"
            time.sleep(_LOOK_S)

    # ---- the loop ------------------------------------------------------------------------------------

    def _until(self, condition: Callable[[], object], limit_s: float, what: str) -> None:
        if not self._turn_until(condition, limit_s):
            ends = "; ".join(self._how(party) for party in self._parties if party.child.exited)
            raise _NotShownError(f"{what} did not come within {limit_s:.0f} s{': ' + ends if ends else ''}")

    def _turn_until(self, condition: Callable[[], object], limit_s: float) -> bool:
        end_s = time.monotonic() + limit_s
        while not condition():
            now_s = time.monotonic()
            if now_s > end_s:
                return False
            turn(self._selector, self._timers.wait_s(now_s, _LOOK_S))
            self._timers.run(time.monotonic())
            if self._looking and now_s - self._looked_s > _LOOK_S:
                self._looked_s = now_s
                self._measure()
        return True

    def _measure(self) -> None:
        living = {party.child.keeper_pid: party for party in self._parties if not party.child.exited}

        def look() -> dict[int, int | None]:
            self._device.read()  # a GPU measures by the pids of its last reading
            return self._device.measure(dict.fromkeys(living))

        try:
            figures = call_within(self._settings.nvml_timeout_s, look, name="vrampool-proof")
        except (TimeoutError, VrampoolError) as error:
            raise _NotShownError(f"{self._device.label} cannot be read: {error}") from None
        for keeper, figure in figures.items():
            living[keeper].measured_bytes = max(living[keeper].measured_bytes, figure or 0)


def _cap() -> str:
    return format_bytes(CAP_BYTES)
