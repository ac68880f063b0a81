"""Which devices a worker is started for, from the settings and the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from vrampool.errors import DeviceLostError, InputError
from vrampool.settings import Settings
from vrampool.units import parse_bytes
from vrampool_worker.devices import cgroups, nvml
from vrampool_worker.devices.base import Device
from vrampool_worker.devices.booked import BookedDevice
from vrampool_worker.devices.cards import Card, pick_cards, split_names, visible_cards
from vrampool_worker.devices.deadline import call_within
from vrampool_worker.devices.host import HostDevice

_log = logging.getLogger(__name__)
#: More threads than this seldom help a data loader or the CPU part of one training.
_MOST_THREADS = 8
#: With time slices, about so many trials share a card before one more gains nothing.
_TRIALS_PER_CARD = 4
_MASK = "CUDA_VISIBLE_DEVICES"
T = TypeVar("T")


def find_devices(settings: Settings, env: Mapping[str, str] | None = None) -> list[Device]:
    """Return the devices that `settings.gpu` asks for, in its order: one worker runs for each.

    "all" is every GPU that CUDA_VISIBLE_DEVICES leaves, or the CPU on a machine without NVIDIA driver; "cpu" is the
    CPU. Otherwise names with commas: indices among the visible GPUs, UUIDs, or beginnings of UUIDs. A card in MIG mode
    stands for all of its instances.

    Args:
        settings: `gpu`, `vram_total`, `max_trials` and `nvml_timeout_s` count.
        env: Environment to read CUDA_VISIBLE_DEVICES and the user's own variables from; None: the process's.

    Raises:
        InputError: a GPU is not there, hidden, or does not tell its size.
        DeviceLostError: the driver fails or hangs.
    """
    env = os.environ if env is None else env
    wanted = settings.gpu.strip()
    if wanted.lower() == "cpu":
        return [HostDevice(env, slots=settings.max_trials)]
    names = None if wanted.lower() == "all" else split_names(wanted)
    if names is not None and (not names or any(name.lower() in ("cpu", "all") for name in names)):
        raise InputError(f"--gpu {settings.gpu!r} is no list of GPUs; write 'all', 'cpu', or for example '0,1'")
    try:
        cards = _within(settings, nvml.list_cards)
    except (nvml.NvmlAbsentError, DeviceLostError) as error:
        return _without_driver(settings, names, env, error)
    if not cards:
        return _without_driver(settings, names, env, nvml.NvmlAbsentError("the NVIDIA driver has no GPU"))
    visible = visible_cards(cards, env.get(_MASK))
    chosen = visible if names is None else pick_cards(visible, names, source="--gpu")
    return _devices(settings, _healthy(chosen, named=names is not None), env)


def _devices(settings: Settings, cards: list[Card], env: Mapping[str, str]) -> list[Device]:
    total_bytes = parse_bytes(settings.vram_total, what="vram_total") if settings.vram_total else None
    slices = [(card, item) for card in cards for item in (card.instances if card.instances is not None else (None,))]
    if not slices:
        raise InputError(f"GPU {cards[0].index} is in MIG mode without any instance; make one with nvidia-smi mig -cgi")
    threads = _threads(len(slices))

    def make() -> list[Device]:
        return [nvml.NvmlDevice(card, item, threads=threads, env=env, total_bytes=total_bytes) for card, item in slices]

    return _within(settings, make)


def _healthy(cards: list[Card], *, named: bool) -> list[Card]:
    """Leave out lost cards where all are asked for; one that is asked for by name must be there."""
    lost = [card for card in cards if card.fault]
    if lost and (named or len(lost) == len(cards)):
        raise DeviceLostError(f"GPU {lost[0].index} is lost: {lost[0].fault}. The host needs attention")
    for card in lost:
        _log.warning("GPU %d is left out, it is lost: %s", card.index, card.fault)
    return [card for card in cards if not card.fault]


def _without_driver(
    settings: Settings, names: list[str] | None, env: Mapping[str, str], error: nvml.NvmlAbsentError | DeviceLostError
) -> list[Device]:
    if settings.vram_total:
        return _booked(settings, names, env)
    if isinstance(error, DeviceLostError):
        raise error
    if names is None:
        _log.info("trials run on the CPU: %s", error)
        return [HostDevice(env, slots=settings.max_trials)]
    raise InputError(f"--gpu {settings.gpu}: {error}. Give the card's size with --vram-total, or start with --gpu cpu")


def _booked(settings: Settings, names: list[str] | None, env: Mapping[str, str]) -> list[Device]:
    total_bytes = parse_bytes(settings.vram_total or "", what="vram_total")
    visible = split_names(env.get(_MASK, "0"))
    if not visible or visible[0] == "-1":
        raise InputError(f"{_MASK}={env[_MASK]!r} hides every GPU; unset it or name one, or start with --gpu cpu")
    if names is not None:
        names = [_booked_name(name, visible, masked=_MASK in env) for name in names]
    chosen = list(dict.fromkeys(visible if names is None else names))
    _log.warning("no NVIDIA driver answers: %s by bookkeeping alone", ", ".join(f"GPU {name}" for name in chosen))
    return [BookedDevice(name, total_bytes, threads=_threads(len(chosen)), env=env) for name in chosen]


def _booked_name(name: str, visible: list[str], *, masked: bool) -> str:
    """Return what CUDA takes for a GPU that nobody lists: an index within the mask, or the id of a `BookedDevice`."""
    bare = name.removeprefix("gpu-")
    if not masked:
        return bare
    if name.isdigit() and int(name) < len(visible):
        return visible[int(name)]
    if bare in visible and not name.isdigit():
        return bare
    raise InputError(f"--gpu names {name}, which is not in {_MASK}={','.join(visible)}; name one of those")


def _threads(devices: int) -> int:
    return max(1, min(_MOST_THREADS, cgroups.cores() // (_TRIALS_PER_CARD * devices)))


def _within(settings: Settings, call: Callable[[], T]) -> T:
    try:
        return call_within(settings.nvml_timeout_s, call, name="vrampool-find")
    except TimeoutError as error:
        raise DeviceLostError(f"the NVIDIA driver hangs: {error}. Repair it, or start with --gpu cpu") from None
