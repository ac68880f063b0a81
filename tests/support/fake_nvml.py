"""Fake NVIDIA cards for tests: a libnvidia-ml.so.1 of our own, used through the real pynvml.

In a test process call `preload()`; for whole programs pass `env` to the subprocess. An objective that shall "use"
memory of the card it was given calls `hold(size_bytes)`, in whatever process it runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3
STATE = "FAKE_NVML_STATE"
SOURCE = Path(__file__).with_name("fake_nvml.c")
_BUILDS = Path(__file__).parents[2] / ".pytest_cache" / "fake_nvml"

NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
GPU_IS_LOST = 15
UNKNOWN = 999


def build() -> Path:
    """Compile the library if this version of it is not there yet, and return its path."""
    source = SOURCE.read_bytes()
    folder = _BUILDS / hashlib.sha256(source).hexdigest()[:16]
    library = folder / "libnvidia-ml.so.1"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    compiler = [shutil.which("cc") or ""] if shutil.which("cc") else [sys.executable, "-m", "ziglang", "cc"]
    building = folder / f"building-{os.getpid()}-{uuid.uuid4().hex}.so"
    flags = [
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
    ]
    subprocess.run([*compiler, *flags, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(building), str(SOURCE)], check=True)
    building.replace(library)  # several test processes may build at once
    return library


@dataclass(frozen=True)
class FakeCard:
    """One card, or one MIG instance when `on_card` is set."""

    index: int
    uuid: str
    total_bytes: int
    reserved_bytes: int
    name: str
    on_card: int | None = None


class FakeNvml:
    """Cards that a test makes, fills, breaks and heals while programs read them.

    Every change is written as a whole and moved into place, so that no reader sees half of it. `which` is a card's
    index, a UUID, or "*" for all; calls are "memory", "memory2", "list", "busy", "gpm", "handle" or "any".
    """

    def __init__(self, folder: Path) -> None:
        self._state = folder / "fake_nvml_state"
        self._records: dict[tuple[str, ...], str] = {}
        self.cards: list[FakeCard] = []
        folder.mkdir(parents=True, exist_ok=True)
        Path(f"{self._state}.d").mkdir(exist_ok=True)
        self._library = build()
        self._write()

    @property
    def env(self) -> dict[str, str]:
        """Variables that make a program see these cards. LD_LIBRARY_PATH counts only at a program's start."""
        return {"LD_LIBRARY_PATH": str(self._library.parent), STATE: str(self._state)}

    def preload(self) -> None:
        """Make this process see these cards; another FakeNvml may take its place later. pynvml finds it by its name."""
        ctypes.CDLL(str(self._library), ctypes.RTLD_GLOBAL)
        os.environ[STATE] = str(self._state)

    def add_card(
        self,
        total_bytes: int = 24 * GIB,
        *,
        reserved_bytes: int = 512 * 1024**2,
        name: str = "NVIDIA Fake RTX",
        card_uuid: str | None = None,
    ) -> FakeCard:
        """Add a card. Its UUID is new each time, so that tests that run side by side do not meet in its lock."""
        index = sum(card.on_card is None for card in self.cards)
        card = FakeCard(index, card_uuid or f"GPU-{uuid.uuid4()}", total_bytes, reserved_bytes, name)
        self.cards.append(card)
        self._set(("card", card.uuid), f"card {index} {card.uuid} {total_bytes} {reserved_bytes} {name}")
        return card

    def add_mig(self, card: FakeCard, total_bytes: int, *, gpu_instance: int, name: str = "MIG 1g.10gb") -> FakeCard:
        """Switch MIG on and add an instance to a card."""
        instance = FakeCard(card.index, f"MIG-{uuid.uuid4()}", total_bytes, 0, name, on_card=card.index)
        self.cards.append(instance)
        self._set(("mig", instance.uuid), f"mig {card.index} {instance.uuid} {total_bytes} {gpu_instance} 0 {name}")
        return instance

    def set_mig_mode(self, which: int) -> None:
        """Switch MIG on without making an instance."""
        self._set(("migmode", str(which)), f"migmode {which}")

    def set_used(self, which: int | str, used_bytes: int) -> None:
        """Set what programs use that no process list names: strangers, as a container sees them."""
        self._set(("used", str(which)), f"used {which} {used_bytes}")

    def add_process(self, which: int | str, pid: int, used_bytes: int | None, *, alive: bool = True) -> None:
        """Add or change a process.

        Args:
            which: The device.
            pid: As the driver names it.
            used_bytes: None: the driver lists it without a figure.
            alive: Count it only while such a process lives, as a driver does; False: a pid of another namespace.
        """
        kind = "proc" if alive else "ghost"
        bytes_text = -1 if used_bytes is None else used_bytes
        self._set(("proc", str(which), str(pid)), f"{kind} {which} {pid} {bytes_text}")

    def remove_process(self, which: int | str, pid: int) -> None:
        self._drop(("proc", str(which), str(pid)))

    def hide_processes(self, which: int | str) -> None:
        """Empty the process list, as in many containers; the memory stays in use."""
        self._set(("unlisted", str(which)), f"unlisted {which}")

    def set_linger(self, which: int | str, seconds: int | None) -> None:
        """Let the memory of a dead process stay in use for so long; None: for ever."""
        self._set(("linger", str(which)), f"linger {which} {-1 if seconds is None else seconds}")

    def forget_dead(self) -> None:
        """Drop what `hold` has written for processes that are gone, so that a later `set_linger` does not mean them."""
        for place in Path(f"{self._state}.d").iterdir():
            if not Path("/proc", place.name).exists():
                place.unlink(missing_ok=True)

    def forget_the_dead(self) -> None:
        """Drop what processes held that are dead by now, or it would linger from the moment `set_linger` says so."""
        for place in Path(f"{self._state}.d").iterdir():
            if place.name.isdigit() and not Path(f"/proc/{place.name}").exists():
                place.unlink(missing_ok=True)

    def set_busy(self, which: int | str, percent: int, *, sm_percent: int | None = None) -> None:
        """Set the utilisation, and that of the multiprocessors; without the latter GPM is not supported."""
        self._set(("busy", str(which)), f"busy {which} {percent}")
        if sm_percent is not None:
            self._set(("sm", str(which)), f"sm {which} {sm_percent}")

    def fail(self, which: int | str, code: int = GPU_IS_LOST, call: str = "any") -> None:
        """Let a call answer an error code from now on; which="init": the start of the library."""
        self._set(("fail", str(which), call), f"fail {which} {code} {call}")

    def hang(self, which: int | str, call: str = "any") -> None:
        """Let a call not come back until `heal`."""
        self._set(("hang", str(which), call), f"hang {which} {call}")

    def heal(self) -> None:
        """End all failures and hangs; calls that hang come back."""
        self._records = {key: line for key, line in self._records.items() if key[0] not in ("fail", "hang")}
        self._write()

    def _set(self, key: tuple[str, ...], line: str) -> None:
        self._records[key] = line
        self._write()

    def _drop(self, key: tuple[str, ...]) -> None:
        self._records.pop(key, None)
        self._write()

    def _write(self) -> None:
        # Cards first: the library tells handles by their place, which must not change for a card that stays.
        lines = sorted(
            self._records.values(), key=lambda line: (not line.startswith("card"), not line.startswith("mig "))
        )
        writing = self._state.with_suffix(".new")
        writing.write_text("".join(f"{line}\n" for line in lines))
        writing.replace(self._state)


def hold(size_bytes: int, *, env: Mapping[str, str] | None = None) -> None:
    """Let the calling process use memory of the fake card that CUDA_VISIBLE_DEVICES gives it, until it dies.

    Does nothing where there is no fake card, so an objective can be used on both kinds of device.
    """
    env = os.environ if env is None else env
    card, state = env.get("CUDA_VISIBLE_DEVICES", ""), env.get(STATE)
    if not card or not state:
        return
    place = Path(f"{state}.d") / str(os.getpid())
    writing = place.with_name(f".{place.name}")
    writing.write_text(f"proc {card} {os.getpid()} {size_bytes}\n")
    writing.replace(place)


def release() -> None:
    """End what `hold` began, before the process ends."""
    with contextlib.suppress(FileNotFoundError):
        (Path(f"{os.environ.get(STATE, '')}.d") / str(os.getpid())).unlink()
