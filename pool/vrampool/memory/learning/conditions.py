"""Which parameters a trial may have beside those that are planned: a conditional one is never planned. Pure.

Whether a trial has a parameter mostly hangs on a choice: a transformer has heads, a network of convolutions has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Decider:
    """The choice that a conditional parameter hangs on."""

    choice: str
    having: frozenset[str]  #: values, as written by `repr`, with which trials have the parameter


def decider_of(name: str, rows: Sequence[Mapping[str, Any]], choices: Collection[str]) -> Decider | None:
    """Find what decides whether trials have a parameter.

    Args:
        name: The parameter.
        rows: Parameters of the trials seen.
        choices: Parameters that may decide it.

    Returns:
        Of the choices whose value has told it of every trial so far the one with most values, for others do so by
        chance while trials are few; None: no choice does.
    """
    found: list[tuple[int, str, frozenset[str]]] = []
    for choice in sorted(choices):
        seen: dict[str, set[bool]] = {}
        for row in rows:
            if choice in row:
                seen.setdefault(repr(row[choice]), set()).add(name in row)
        having = frozenset(value for value, presence in seen.items() if True in presence)
        if having and len(having) < len(seen) and all(len(presence) == 1 for presence in seen.values()):
            found.append((len(seen), choice, having))
    return Decider(*max(found)[1:]) if found else None


def may_have(
    names: Collection[str], params: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], choices: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Say what a trial may have beside its planned parameters.

    Args:
        names: Parameters of other trials that it has not.
        params: Its planned parameters.
        rows: Parameters of the trials seen.
        choices: Parameters that others may hang on.

    Returns:
        Those of `names` that it may have, and the choices that say so. Where its value of a choice was never seen, what
        hangs on that choice is unknown as well, and taken to be absent: others' values of it would mean nothing.
    """
    present: set[str] = set()
    deciding: set[str] = set()
    for name in names:
        decider = decider_of(name, rows, choices)
        if decider is None or decider.choice not in params:
            present.add(name)
        elif repr(params[decider.choice]) in decider.having:
            present.add(name)
            deciding.add(decider.choice)
    return frozenset(present), frozenset(deciding)
