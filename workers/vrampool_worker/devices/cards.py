"""Which card is meant: cards and MIG instances as the driver lists them, and the names people give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vrampool.errors import InputError


@dataclass(frozen=True)
class MigInstance:
    """A MIG instance of a card: a device of its own."""

    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True)
class Card:
    """A physical card as NVML numbers it, in PCI order."""

    index: int
    uuid: str
    name: str
    instances: tuple[MigInstance, ...] | None = None  #: None: MIG is off
    fault: str = ""  #: why the driver does not tell the rest; such a card only keeps its place


def visible_cards(cards: Sequence[Card], mask: str | None) -> list[Card]:
    """Return the cards that CUDA_VISIBLE_DEVICES leaves, in its order; of a MIG card only the named instances.

    Indices are read in PCI order, as nvidia-smi shows them: CUDA's own default order may differ on unlike cards.

    Args:
        cards: All cards of the machine.
        mask: The variable's value; None: it is not set.

    Raises:
        InputError: it hides every GPU, or names one that is not there.
    """
    if mask is None:
        return list(cards)
    names = []
    for name in split_names(mask):
        if name == "-1" or name.lower() == "nodevfiles":  # what follows is hidden too, as CUDA has it
            break
        names.append(name)
    if not names:
        raise InputError(f"CUDA_VISIBLE_DEVICES={mask!r} hides every GPU; unset it or name one, or use --gpu cpu")
    return pick_cards(cards, names, source="CUDA_VISIBLE_DEVICES")


def pick_cards(cards: Sequence[Card], names: Sequence[str], *, source: str) -> list[Card]:
    """Return the named cards, in the order of the names; instances of one MIG card become one entry.

    An index counts within `cards`. A UUID may be cut short as long as one card or instance fits.

    Raises:
        InputError: a name fits none or several, or one card is named twice.
    """
    picked: list[Card] = []
    for name in names:
        card = _pick(cards, name, source)
        there = next((place for place, other in enumerate(picked) if other.uuid == card.uuid), None)
        if there is None:
            picked.append(card)
            continue
        earlier = picked[there]
        known = {item.uuid for item in earlier.instances or ()}
        if not card.instances or any(item.uuid in known for item in card.instances):
            raise InputError(f"{source} names {name} twice; name each GPU once")
        picked[there] = replace(earlier, instances=(earlier.instances or ()) + card.instances)
    return picked


def split_names(text: str) -> list[str]:
    """Split a list of GPU names at commas; spaces do not count."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _pick(cards: Sequence[Card], name: str, source: str) -> Card:
    if name.isdigit():
        if int(name) < len(cards):
            return cards[int(name)]
        raise InputError(f"{source} names GPU {name}, which is not there; there is {_listing(cards)}")
    fits = [card for card in cards if name[:4].upper() == "GPU-" and card.uuid.lower().startswith(name.lower())]
    fits += [
        replace(card, instances=(item,))
        for card in cards
        for item in card.instances or ()
        if _names_instance(name, card, item)
    ]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise InputError(f"{source} names {name!r}, which fits {len(fits)} GPUs; write more of the UUID")
    raise InputError(f"{source} names {name!r}, which is not there; there is {_listing(cards)}")


def _names_instance(name: str, card: Card, item: MigInstance) -> bool:
    # Drivers before 470 write MIG-<card's UUID>/<GPU instance>/<compute instance>.
    if name.lower() == f"mig-{card.uuid}/{item.gpu_instance}/{item.compute_instance}".lower():
        return True
    return name[:4].upper() == "MIG-" and item.uuid.lower().startswith(name.lower())


def _listing(cards: Sequence[Card]) -> str:
    if not cards:
        return "no GPU"
    return ", ".join(
        f"{place} ({', '.join(item.uuid for item in card.instances) if card.instances else card.uuid or card.fault})"
        for place, card in enumerate(cards)
    )
