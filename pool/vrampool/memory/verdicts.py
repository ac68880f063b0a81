"""Out-of-memory errors: which exceptions are one, and whose fault it was. Pure; also used in the child.

An error is known by its class, the module of its class, its bases and its text together: Redis has an
`OutOfMemoryError` too, torch's CPU allocator raises a plain RuntimeError, and a user's ValueError may quote anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from vrampool.messages import Verdict
from vrampool.units import GIB, MIB, format_bytes


class MemoryKind(StrEnum):
    """Which memory ran out."""

    CUDA = "cuda"
    HOST = "host"


@dataclass(frozen=True)
class MemoryFault:
    """An out-of-memory error, with the figures its text holds. Bytes; None where it does not say."""

    kind: MemoryKind
    asked_bytes: int | None = None
    allowed_bytes: int | None = None  #: the process's own cap
    free_bytes: int | None = None  #: on the device, at that moment
    in_use_bytes: int | None = None  #: by the process, its context included

    def to_dict(self) -> dict[str, Any]:
        """Return it as the child tells it: `Outcome.memory`."""
        return {"device": str(self.kind), **{name: getattr(self, name) for name in _FIGURES}}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Read it back; an unknown device counts as CUDA, and what is no figure as unknown."""
        kind = MemoryKind.HOST if raw.get("device") == MemoryKind.HOST else MemoryKind.CUDA
        figures = {name: raw.get(name) for name in _FIGURES}
        return cls(kind, **{name: value for name, value in figures.items() if isinstance(value, int)})


_FIGURES = ("asked_bytes", "allowed_bytes", "free_bytes", "in_use_bytes")

#: Texts of every library that runs out of device memory, in whatever class it wraps them.
_CUDA_TEXT = re.compile(
    r"(?:CUDA|HIP|XPU) out of memory"
    r"|CUDA (?:driver |runtime )?error(?: \d+)?: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|Cuda failure (?:\d+ )?'out of memory'"
    r"|\[CUDA\]:? out of memory|cuMemAlloc failed: out of memory"
    r"|CU(?:BLAS|DNN|SOLVER|SPARSE|FFT|RAND)(?:_STATUS)?_ALLOC(?:ATION)?_FAILED|CUSPARSE_STATUS_INSUFFICIENT_RESOURCES"
    r"|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    r"|Allocation on device (?:\d+ )?would exceed allowed memory"
    # torch raises this instead of its out-of-memory error when NVML fails while that error is put together.
    r"|NVML_SUCCESS == .*CUDACachingAllocator"
    r"|BFCArena::\w+ Failed to allocate memory|device:GPU:\d+ by allocator|by allocator GPU_\d+",
    re.DOTALL,
)
#: XLA says the same for every device it runs on.
_XLA_TEXT = re.compile(r"RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory|allocat)", re.DOTALL)
_HOST_TEXT = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"
    r"|\[enforce fail at alloc_cpu\.cpp"
    r"|device:CPU:\d+ by allocator"
    r"|DataLoader worker \(pid.{1,80}? is killed by signal: (?:Killed|Bus error)|out of shared memory"
    r"|unable to (?:mmap|allocate shared memory)|unable to open shared memory object"
    r"|std::bad_alloc|Cannot allocate memory"
    r"|can't start new thread"
)
#: What a process writes that dies for want of host memory before it can raise.
_HOST_LOG = re.compile(r"libgomp: Thread creation failed|std::bad_alloc|MemoryError\b|Cannot allocate memory")

#: No process holds more.
_LARGEST_BYTES = 1024**5

#: Top-level modules whose own error classes may mean device memory, whatever their base is.
_LIBRARIES = {
    "catboost", "cudf", "cuml", "cupy", "cupy_backends", "jax", "jaxlib", "lightgbm", "numba", "onnxruntime", "pycuda",
    "rmm", "tensorflow", "torch", "triton", "xgboost",
}  # fmt: skip
_XLA_CLASSES = {"XlaRuntimeError", "JaxRuntimeError"}
_NUMBER = r"(\d[\d,]*(?:\.\d+)?)\s*([KMGT]i?B|B|bytes?)?"
_ASKED = (
    re.compile(rf"[Tt]ried to allocate {_NUMBER}"),
    re.compile(rf"Requested\s*:\s*{_NUMBER}"),
    re.compile(rf"trying to allocate {_NUMBER}"),
    re.compile(rf"Out of memory allocating {_NUMBER}"),
    re.compile(rf"Unable to allocate {_NUMBER}"),
    re.compile(rf"requested buffer of size {_NUMBER}"),
    re.compile(rf"Requested {_NUMBER}"),
    re.compile(rf"unable to mmap {_NUMBER}"),
)
_ALLOWED = (
    re.compile(rf"{_NUMBER} allowed"),
    re.compile(rf"PyTorch limit \([^)]*\)\s*:\s*{_NUMBER}"),
    re.compile(rf"limit set to: {_NUMBER}"),
)
_FREE = (
    re.compile(rf"of which {_NUMBER} is free"),
    re.compile(rf"; {_NUMBER} free"),
    re.compile(rf"Free \(according to CUDA\)\s*:\s*{_NUMBER}"),
)
_IN_USE = (re.compile(rf"this process has {_NUMBER} memory in use"),)
_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1, "kb": 1000, "kib": 1024, "mb": 1000**2, "mib": MIB, "gb": 1000**3}
_UNITS |= {"gib": GIB, "tb": 1000**4, "tib": 1024**4}


def classify(type_name: str, module: str, mro: Sequence[str], text: str) -> MemoryFault | None:
    """Say whether an exception means that memory ran out, and which; None: it means something else.

    Args:
        type_name: Name of its class, with or without its module.
        module: Module of its class.
        mro: Qualified names of its class and bases, such as "torch.OutOfMemoryError" and "builtins.RuntimeError".
        text: ``str(exception)``.
    """
    name = type_name.rpartition(".")[2]
    bases = {*mro, f"{module}.{name}"}
    library = module.partition(".")[0]
    of_library = library in _LIBRARIES or any(base.partition(".")[0] in _LIBRARIES for base in bases)
    is_runtime = "builtins.RuntimeError" in bases or "RuntimeError" in bases
    is_memory = "builtins.MemoryError" in bases or "MemoryError" in bases
    if of_library or is_runtime or is_memory:
        if _CUDA_TEXT.search(text) and not _names_host_first(text):
            return _fault(MemoryKind.CUDA, text)
        if name in _XLA_CLASSES and _XLA_TEXT.search(text):
            return _fault(MemoryKind.CUDA, text)
        if _HOST_TEXT.search(text):
            return _fault(MemoryKind.HOST, text)
    if of_library and any(base.rpartition(".")[2] in ("OutOfMemoryError", "ResourceExhaustedError") for base in bases):
        return _fault(MemoryKind.CUDA, text)
    if is_memory:
        return _fault(MemoryKind.HOST, text)
    if _is_os_error(bases) and ("[Errno 12]" in text or "failed to map segment from shared object" in text):
        return _fault(MemoryKind.HOST, text)
    return None


def classify_log(tail: str) -> MemoryFault | None:
    """Say whether the end of a dead process's output tells that host memory ran out before it could raise."""
    return _fault(MemoryKind.HOST, "") if _HOST_LOG.search(tail) else None


def _names_host_first(text: str) -> bool:
    # A DataLoader's error quotes another traceback; the allocator that is named first is the one that failed.
    host, cuda = _HOST_TEXT.search(text), _CUDA_TEXT.search(text)
    return host is not None and cuda is not None and host.start() < cuda.start() and "bad_alloc" not in host.group()


def _is_os_error(bases: set[str]) -> bool:
    return bool(bases & {"builtins.OSError", "OSError", "builtins.ImportError", "ImportError"})


def _fault(kind: MemoryKind, text: str) -> MemoryFault:
    if kind == MemoryKind.HOST:
        return MemoryFault(kind, asked_bytes=_first(_ASKED, text))
    return MemoryFault(
        kind,
        asked_bytes=_first(_ASKED, text),
        allowed_bytes=_first(_ALLOWED, text),
        free_bytes=_first(_FREE, text),
        in_use_bytes=_believable(_first(_IN_USE, text)),
    )


def _believable(in_use_bytes: int | None) -> int | None:
    # In containers the driver does not name the process, and torch then prints 17179869184.00 GiB.
    return None if in_use_bytes is None or in_use_bytes > _LARGEST_BYTES else in_use_bytes


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        found = pattern.search(text)
        if found:
            number = float(found.group(1).replace(",", ""))
            return int(number * _UNITS[(found.group(2) or "").lower()])
    return None


#: An allocator takes memory in pieces of up to this, so a card with so little beyond what was asked is full.
_PIECE_BYTES = 20 * MIB
#: A card with less than this free has no room for a library's handle or workspace, which name no figure.
_TIGHT_BYTES = 512 * MIB


@dataclass(frozen=True)
class VerdictNumbers:
    """What the parent knows of a trial that ran out of memory. Figures in the error itself go before it."""

    lease_bytes: int  #: when it failed
    used_bytes: int | None = None  #: by the trial at its last sample, overhead included
    device_free_bytes: int | None = None  #: by the last reading
    on_cpu: bool = False  #: host memory is the device's budget
    lease_before_shrink_bytes: int | None = None  #: set when we made its lease smaller while it ran
    driver_limit_bytes: int | None = None  #: what the driver lets the process have (MPS), its context included


@dataclass(frozen=True)
class Judgement:
    """Whose fault it was, and why, for people."""

    verdict: Verdict
    reason: str


def judge(fault: MemoryFault, numbers: VerdictNumbers) -> Judgement:
    """Judge an out-of-memory error of a trial.

    A trial is a victim only if its lease would have covered what it asked for: one that asked beyond its lease would
    have been refused by its own cap on an empty card too.
    """
    lease_bytes = numbers.lease_bytes
    ran_with = f"it ran with a lease of {format_bytes(lease_bytes)}"
    before_bytes = numbers.lease_before_shrink_bytes
    before = format_bytes(before_bytes)
    shrunk = Judgement(Verdict.SHRINK, f"its lease had been made smaller while it ran, from {before}: {ran_with}")
    if numbers.on_cpu:
        if before_bytes is not None and (numbers.used_bytes or 0) + (fault.asked_bytes or 0) <= before_bytes:
            return shrunk
        return Judgement(Verdict.CULPRIT, f"host memory, the budget of this device, ran out: {ran_with}")
    if fault.kind == MemoryKind.HOST:
        return Judgement(Verdict.HOST, f"host memory ran out, not VRAM: the request stays; {ran_with}")
    used = fault.in_use_bytes if fault.in_use_bytes is not None else numbers.used_bytes
    judgement = _judge_cuda(fault, used, numbers, ran_with)
    if before_bytes is None or judgement.verdict == Verdict.VICTIM:
        return judgement
    if used is not None and fault.asked_bytes is not None and used + fault.asked_bytes > before_bytes:
        return judgement
    return shrunk


def _judge_cuda(fault: MemoryFault, used: int | None, numbers: VerdictNumbers, ran_with: str) -> Judgement:
    asked, free = fault.asked_bytes, fault.free_bytes
    if asked is not None and free is not None and free >= asked + _PIECE_BYTES and fault.allowed_bytes is not None:
        cap = format_bytes(fault.allowed_bytes)
        return Judgement(
            Verdict.CULPRIT,
            f"it asked for {format_bytes(asked)} beyond its cap of {cap}, with {format_bytes(free)} free; {ran_with}",
        )
    if used is None and asked is not None and asked > numbers.lease_bytes:
        return Judgement(Verdict.CULPRIT, f"it asked for {format_bytes(asked)}, more than all it had; {ran_with}")
    if used is None:
        return Judgement(Verdict.UNKNOWN, f"what it had in use is not known; {ran_with}")
    limit = numbers.driver_limit_bytes
    if limit is not None and used + (_TIGHT_BYTES if asked is None else asked + _PIECE_BYTES) > limit:
        wanted = f"{format_bytes(used)} in use" + (f" and {format_bytes(asked)} asked for" if asked else "")
        allowed = f"the {format_bytes(limit)} that the driver lets a client of MPS have"
        return Judgement(Verdict.CULPRIT, f"it needed more than {allowed}: {wanted}; {ran_with}")
    if limit is not None:
        free = None  # such a process is told what is free of its own limit
    if used >= numbers.lease_bytes or used + (asked or 0) > numbers.lease_bytes:
        wanted = f"{format_bytes(used)} in use" + (f" and {format_bytes(asked)} asked for" if asked else "")
        return Judgement(Verdict.CULPRIT, f"it needed more than its lease: {wanted}; {ran_with}")
    free = numbers.device_free_bytes if free is None else free
    if free is not None and free < (_TIGHT_BYTES if asked is None else asked + _PIECE_BYTES):
        return Judgement(
            Verdict.VICTIM,
            f"the device was full ({format_bytes(free)} free) while it kept to its lease, with {format_bytes(used)} "
            f"in use; {ran_with}",
        )
    return Judgement(Verdict.UNKNOWN, f"the figures do not tell whose fault it was; {ran_with}")
