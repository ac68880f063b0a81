"""The lines of source that travel with a bundle, so that a traceback from a trial reads as it would at home.

Byte code knows the name of its file and its line numbers, not the lines. The file may not be there where the trial
runs, or have been edited since; a notebook's cell is no file at all.
"""

from __future__ import annotations

import json
import linecache
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: More than this is not sent: a traceback without lines names the file still.
LIMIT_BYTES = 256 * 1024
#: Where `types.CodeType` takes the file's name.
_FILE_NAME = 10


class SourceLines:
    """Collects the lines of all code that is pickled."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, str]] = {}  #: by the name that the file is given, by line number
        self._cells: dict[str, str] = {}

    def reducer(self, reduce: Callable[[types.CodeType], Any]) -> Callable[[types.CodeType], Any]:
        """Return what pickles code as `reduce` does, but with the name of its file, and notes its lines.

        cloudpickle leaves the name out, so that the same code makes the same bytes. A cell's name, which holds the
        kernel's process number, is replaced by its number here.
        """

        def with_name(code: types.CodeType) -> Any:
            kind, arguments = reduce(code)
            name = self._note(code)
            return kind, (*arguments[:_FILE_NAME], name, *arguments[_FILE_NAME + 1 :])

        return with_name

    def _note(self, code: types.CodeType) -> str:
        source = linecache.getlines(code.co_filename)
        name = self._name_of(code.co_filename) if source else code.co_filename
        last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
        kept = self._lines.setdefault(name, {})
        for number in range(max(1, code.co_firstlineno), min(last, len(source)) + 1):
            kept[number] = source[number - 1]
        return name

    def _name_of(self, file_name: str) -> str:
        is_cell = "ipykernel_" in file_name or (Path(file_name).is_absolute() and not Path(file_name).is_file())
        if not is_cell:
            return file_name
        return self._cells.setdefault(file_name, f"<notebook cell {len(self._cells) + 1}>")

    def pack(self) -> bytes:
        """Return what goes behind the pickle, where whoever opens that does not look; empty: no lines are known."""
        found = {name: lines for name, lines in self._lines.items() if lines}
        body = json.dumps(found).encode() if found else b""
        return body if len(body) <= LIMIT_BYTES else b""
