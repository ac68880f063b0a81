"""What a process imports ahead of its trial, and whether it gets on with that."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from vrampool_worker import process_tree

_log = logging.getLogger("vrampool.worker")

#: An import that takes longer is told of; one that has done next to nothing for so long hangs.
SLOW_S = 5.0
#: What takes longer is told to people, whatever it does.
LONG_S = 30.0
#: Within `SLOW_S` an import that is alive, on a slow disk too, computes, reads or loads more than that.
_LITTLE = (0.1, 64 * 1024, 16)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Importing:
    """The import that a process is in.

    Args:
        module: Its name.
        pid: Of the process.
        now_s: When it began, by the monotonic clock.
    """

    def __init__(self, module: str, pid: int, now_s: float) -> None:
        self.module = module
        self.trouble = ""  #: what is wrong with it and what helps, in words; empty: nothing so far
        self.hangs = False
        self._pid = pid
        self._since_s = now_s
        self._is_slow = False
        self._looked_s, self._work = now_s, _work_of(pid)

    def look(self, now_s: float) -> None:
        """See how it gets on; tell the log once that it takes long, and once that it hangs. Call it now and then."""
        if now_s - self._looked_s < SLOW_S:
            return
        before, self._work, self._looked_s = self._work, _work_of(self._pid), now_s
        done = (now - then for now, then in zip(self._work, before, strict=True))
        self.hangs = all(amount < little for amount, little in zip(done, _LITTLE, strict=True))
        taken_s = now_s - self._since_s
        if not self.hangs and taken_s < LONG_S:
            self.trouble = ""
            if not self._is_slow:
                self._is_slow = True
                _log.info("importing %s ahead of trials takes long: %.0f s so far", self.module, taken_s)
        elif not self.trouble:
            how = f"has done nothing for {SLOW_S:.0f} s" if self.hangs else f"has taken {taken_s:.0f} s"
            self.trouble = (
                f"importing {self.module} ahead of trials {how}: they start without it, and later; "
                "mend that import, or leave it out of --preload"
            )
            _log.warning("%s (process %d)", self.trouble, self._pid)


def _work_of(pid: int) -> tuple[float, int, int]:
    """Return what a process has done so far: seconds of CPU, bytes read, pages brought in from a disk."""
    fields = process_tree.stat_of(pid)
    if fields is None:
        return 0.0, 0, 0
    try:
        read_bytes = int(Path(f"/proc/{pid}/io").read_text().split()[1])
    except (OSError, ValueError, IndexError):  # it is not told to us
        read_bytes = 0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, read_bytes, int(fields[9])
