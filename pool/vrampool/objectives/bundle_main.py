"""What `__main__` is in processes that a bundled objective starts with multiprocessing's "spawn" or "forkserver".

Such a process imports the module its parent's `__main__` says it is, to find the functions and classes it will be
sent by name. A notebook has no module; the trial's process has left the bundle in a file.
"""

from __future__ import annotations

import os
from pathlib import Path

from vrampool.objectives.loading import BUNDLE_VARIABLE, main_names, unpack

_file = os.environ.get(BUNDLE_VARIABLE)
if _file:
    # The same bytes, under the same user, that the parent process has opened after their signature was checked.
    globals().update(main_names(unpack(Path(_file).read_bytes())))
