"""Lua scripts, each in a file of its own language beside this one, run by their hash.

A line ``-- include NAME.lua`` stands for that file.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoScriptError

Word = str | bytes | int | float


_INCLUDE = re.compile(r"^-- include (\w+\.lua)$", re.MULTILINE)


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


@functools.cache
def _load(name: str) -> tuple[str, str]:
    text = _INCLUDE.sub(lambda found: _read(found[1]), _read(f"{name}.lua"))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def run_script(connection: redis.Redis, name: str, keys: Sequence[str], args: Sequence[Word]) -> Any:
    """Run the script of that name.

    Round trips: 1; one more the first time after the server started, when it does not know the script yet.
    """
    text, digest = _load(name)
    try:
        return connection.evalsha(digest, len(keys), *keys, *args)
    except NoScriptError:
        return connection.eval(text, len(keys), *keys, *args)
