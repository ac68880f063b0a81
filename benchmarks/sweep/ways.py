"""The ways of running the sweep, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """One of them."""

    name: str
    kind: str  #: "one", "fixed", "oracle" or "pool"
    at_once: int = 0  #: of "fixed"
    mps: bool = False  #: under NVIDIA's Multi-Process Service
    start: str = "forkserver"  #: how trials start; the pool's own default is spawned spares

    @property
    def is_pool(self) -> bool:
        return self.kind == "pool"


_NAME = re.compile(r"(?P<kind>one|fixed(?P<count>[1-9]\d?)|oracle|pool)(?P<options>(-mps|-spawn|-forkserver)*)")
DEFAULT = "one,fixed2,fixed4,oracle,pool,pool-forkserver,oracle-mps,pool-mps"
DEFAULT_LARGE = "one,pool,pool-mps"


def way_of(name: str) -> Way:
    """Return the way with this name: "one", "fixed4", "oracle-mps", "pool-forkserver-mps", "one-spawn", ...

    Raises:
        ValueError: there is none.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"there is no way {name!r}: name one, fixedN, oracle or pool, with -mps, -spawn, -forkserver")
    kind = "fixed" if found["count"] else found["kind"]
    options = found["options"].split("-")
    start = "spawn" if "spawn" in options or (kind == "pool" and "forkserver" not in options) else "forkserver"
    return Way(name, kind, int(found["count"] or 0), "mps" in options, start)
