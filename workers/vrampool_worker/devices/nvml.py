"""NVIDIA GPUs and MIG instances through NVML. The only importer of pynvml.

What containers and old drivers get wrong is expected here: the process list may be empty, hold pids of the host or
no figures; memory may be told in the old way, which counts the driver's part as used, or not at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pynvml
from pynvml import NVMLError

from vrampool.errors import DeviceLostError, InputError
from vrampool_worker.devices.base import DeviceReading
from vrampool_worker.devices.cards import Card, MigInstance
from vrampool_worker.devices.environment import cuda_env
from vrampool_worker.devices.gpm import Gpm
from vrampool_worker.devices.trees import PROC, below

_log = logging.getLogger(__name__)
_nvml: Any = pynvml  # has no type hints
T = TypeVar("T")

#: There is no NVIDIA driver here to talk to, as on any machine without a GPU.
_ABSENT = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
}
#: The driver says that the card is gone, and will not say otherwise without help from outside.
_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
}
#: This driver or card does not tell that figure, and never will.
_UNTOLD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}
#: Inode of the PID namespace a host boots into. In it, NVML's pids are those that we see.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


class NvmlAbsentError(Exception):
    """Raised when there is no NVIDIA driver on this machine; the text says what is missing."""


class _Library:
    """NVML as this process holds it. Handles are good for one generation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.generation = 0

    def open(self) -> None:
        with self._lock:
            if self.generation == 0:
                _nvml.nvmlInit()
                self.generation = 1

    def reopen(self, seen_generation: int) -> None:
        """Start NVML anew, unless another device has done so since this generation."""
        with self._lock:
            if self.generation != seen_generation:
                return
            try:
                _nvml.nvmlShutdown()
            except NVMLError:
                pass  # it is in disorder, that is why it is started anew
            _nvml.nvmlInit()
            self.generation += 1


_library = _Library()


def list_cards() -> list[Card]:
    """Return the cards of this machine, each with its MIG instances. May block as long as the driver does.

    Raises:
        NvmlAbsentError: there is no driver.
        DeviceLostError: there is one, and it fails.
    """
    try:
        _library.open()
        return [_card(index) for index in range(_nvml.nvmlDeviceGetCount())]
    except NVMLError as error:
        if _code(error) in _ABSENT:
            raise NvmlAbsentError(f"there is no NVIDIA driver here ({error})") from None
        raise DeviceLostError(
            f"the NVIDIA driver fails: {error}. Repair it (nvidia-smi must run), or start with --gpu cpu"
        ) from None


def _code(error: NVMLError) -> int:
    value: int = getattr(error, "value")  # noqa: B009 - set by its metaclass, unseen by type checkers
    return value


def _card(index: int) -> Card:
    """Return one card. One that is lost keeps its place, so that the others keep their numbers and their workers."""
    try:
        handle = _nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = _nvml.nvmlDeviceGetUUID(handle), _nvml.nvmlDeviceGetName(handle)
        return Card(index, uuid, name, _instances(handle))
    except NVMLError as error:
        return Card(index, uuid="", name="", fault=str(error))


def _instances(card_handle: Any) -> tuple[MigInstance, ...] | None:
    try:
        mode, _ = _nvml.nvmlDeviceGetMigMode(card_handle)
        places = _nvml.nvmlDeviceGetMaxMigDeviceCount(card_handle) if mode else 0
    except NVMLError as error:
        if _code(error) in _UNTOLD:
            return None
        raise
    if not mode:
        return None
    found = [_instance(card_handle, place) for place in range(places)]
    return tuple(item for item in found if item is not None)


def _instance(card_handle: Any, place: int) -> MigInstance | None:
    try:
        handle = _nvml.nvmlDeviceGetMigDeviceHandleByIndex(card_handle, place)
    except NVMLError as error:
        if _code(error) in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
            return None  # this place is empty
        raise
    return MigInstance(
        uuid=_nvml.nvmlDeviceGetUUID(handle),
        name=_nvml.nvmlDeviceGetName(handle),
        gpu_instance=_nvml.nvmlDeviceGetGpuInstanceId(handle),
        compute_instance=_nvml.nvmlDeviceGetComputeInstanceId(handle),
    )


class NvmlDevice:
    """One GPU or MIG instance.

    Args:
        card: The physical card.
        instance: The MIG instance on it; None: the whole card.
        threads: Threads for a child's own CPU work.
        env: The worker's environment.
        total_bytes: Size given by hand, used only where NVML does not tell it.
        pids_are_ours: Whether NVML's pids are those of our PID namespace; None: found out.

    Raises:
        InputError: NVML does not tell the memory and no size was given.
        DeviceLostError: the driver no longer has the device.
    """

    kind = "cuda"
    default_slots = 16

    def __init__(
        self,
        card: Card,
        instance: MigInstance | None = None,
        *,
        threads: int,
        env: Mapping[str, str],
        total_bytes: int | None = None,
        pids_are_ours: bool | None = None,
        proc: Path = PROC,
    ) -> None:
        self.id = instance.uuid if instance else card.uuid
        self.name = instance.name if instance else card.name
        self.label = f"GPU {card.index}" + (f" MIG {instance.gpu_instance}" if instance else "")
        self._card_uuid = card.uuid
        self._instance = instance
        self._threads = threads
        self._env = env
        self._proc = proc
        self._pids_are_ours = _in_first_namespace(proc) if pids_are_ours is None else pids_are_ours
        self._generation = 0
        self._handle: Any = None
        self._gpm: Gpm | None = None
        self._pids: Mapping[int, int | None] = {}
        self._tells_memory, self.total_bytes = self._size(total_bytes)
        self.driver = _driver_version()

    def _connect(self) -> None:
        """Fetch the handle if NVML was started anew since the last one."""
        _library.open()
        if self._generation == _library.generation:
            return
        self._handle = _nvml.nvmlDeviceGetHandleByUUID(self.id)
        card_handle = _nvml.nvmlDeviceGetHandleByUUID(self._card_uuid) if self._instance else self._handle
        self._gpm = Gpm(_nvml, card_handle, self._instance.gpu_instance if self._instance else None)
        self._generation = _library.generation

    def _size(self, by_hand_bytes: int | None) -> tuple[bool, int]:
        try:
            self._connect()
            return True, _memory(self._handle)[0]
        except NVMLError as error:
            if _code(error) not in _UNTOLD:
                raise self._lost(error) from None
        if by_hand_bytes is None:
            raise InputError(
                f"{self.label} ({self.name}) does not tell its memory; give its size, for example --vram-total 8GiB"
            )
        _log.warning("%s does not tell its memory: it is managed by bookkeeping alone", self.label)
        return False, by_hand_bytes

    def read(self) -> DeviceReading:
        at_s = time.monotonic()
        unknown: list[str] = []
        fault = ""
        used_bytes = reserved_bytes = None
        if self._tells_memory:
            try:
                _, reserved_bytes, used_bytes = self._read_memory()
            except NVMLError as error:
                fault = f"{self.label} does not tell its memory now: {error}"
        if used_bytes is None:
            unknown.append("used_bytes")
        if reserved_bytes is None:
            unknown.append("driver_reserved_bytes")
        processes = self._ask("process_bytes", unknown, lambda: _processes(self._handle))
        busy = self._ask("busy", unknown, lambda: int(_nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100)
        utilisation = self._ask("utilisation", unknown, lambda: self._gpm.utilisation() if self._gpm else None)
        self._pids = processes or {}
        return DeviceReading(
            at_s=at_s,
            total_bytes=self.total_bytes,
            driver_reserved_bytes=reserved_bytes,
            used_bytes=used_bytes,
            process_bytes=self._pids,
            foreign_pids=not self._pids_are_ours,
            utilisation=utilisation,
            busy=busy,
            unknown=tuple(unknown),
            fault=fault,
        )

    def _read_memory(self) -> tuple[int, int | None, int]:
        try:
            self._connect()
            return _memory(self._handle)
        except NVMLError as error:
            if _code(error) in _LOST:
                raise self._lost(error) from None
        # A driver that was reset under us, or a container that lost its devices for a moment: start anew, once.
        try:
            _library.reopen(self._generation)
            self._connect()
        except NVMLError as error:
            raise self._lost(error) from None
        try:
            return _memory(self._handle)
        except NVMLError as error:
            if _code(error) in _LOST:
                raise self._lost(error) from None
            raise

    def _lost(self, error: NVMLError) -> DeviceLostError:
        return DeviceLostError(
            f"{self.label} ({self.name}) is lost: {error}. The host needs attention; dmesg may name an Xid"
        )

    def _ask(self, field: str, unknown: list[str], question: Callable[[], T | None]) -> T | None:
        try:
            answer = question()
        except NVMLError as error:
            if _code(error) in _LOST:
                raise self._lost(error) from None
            answer = None
        if answer is None:
            unknown.append(field)
        return answer

    def measure(self, limits: Mapping[int, int | None]) -> dict[int, int | None]:
        """Measure trials by the pids of the last reading; None where NVML does not name one that is surely ours."""
        return {keeper: self._one(keeper) for keeper in limits}

    def _one(self, keeper: int) -> int | None:
        if not self._pids:
            return None
        named = [pid for pid in below(keeper, self._proc) if pid in self._pids and self._is_ours(pid)]
        figures = [self._pids[pid] for pid in named]
        known = [figure for figure in figures if figure is not None]
        # A part of the sum would look like the whole, and be too small.
        return sum(known) if known and len(known) == len(figures) else None

    def _is_ours(self, pid: int) -> bool:
        """Say whether NVML means our process by this pid, and not one of the host that has the same number."""
        if self._pids_are_ours:
            return True
        folder = self._proc / str(pid) / "fd"
        try:
            return any(str(link.readlink()).startswith("/dev/nvidia") for link in folder.iterdir())
        except OSError:
            return False

    def child_env(self) -> dict[str, str]:
        return cuda_env(self.id, self._threads, self._env)


def _driver_version() -> str:
    try:
        return str(_nvml.nvmlSystemGetDriverVersion())
    except NVMLError:
        return ""


def _memory(handle: Any) -> tuple[int, int | None, int]:
    """Return total, the driver's part (None: it is counted in the last one) and used bytes."""
    try:
        memory = _nvml.nvmlDeviceGetMemoryInfo(handle, version=_nvml.nvmlMemory_v2)
        return int(memory.total), int(memory.reserved), int(memory.used)
    except NVMLError as error:
        if _code(error) not in _UNTOLD:
            raise
    memory = _nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.total), None, int(memory.used)


def _processes(handle: Any) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for ask in (_nvml.nvmlDeviceGetComputeRunningProcesses, _nvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in ask(handle):
            # A process that computes and draws is in both lists with the same memory.
            found[int(process.pid)] = None if process.usedGpuMemory is None else int(process.usedGpuMemory)
    return found


def _in_first_namespace(proc: Path) -> bool:
    try:
        return str((proc / "self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return False
