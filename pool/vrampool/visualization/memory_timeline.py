"""The door to the picture of memory over time; matplotlib is imported when it is opened, not before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vrampool.errors import InputError
from vrampool.visualization.timeline import read_timelines


def plot_memory_timeline(
    samples: Iterable[Mapping[str, Any]],
    releases: Iterable[Mapping[str, Any]],
    path: str | os.PathLike[str],
    *,
    title: str = "Memory of the pool",
) -> Path:
    """Draw one row per device: who held its memory when, and how each trial ended.

    Args:
        samples: Readings of devices, in any order: dicts with `at_s` (seconds since the epoch), `device_id`,
            `device_name`, `total_bytes`, `budget_bytes`, `used_bytes`, `driver_reserved_bytes`, `strangers_bytes`
            and `trials`, a list of {`study`, `number`, `lease_bytes`, `measured_bytes`}. Bytes may be None where
            they are not known.
        releases: Ends of trials: dicts with `study`, `number`, `device_id`, `ended_at_s`, `state`,
            `residue_bytes`, `back_s`.
        path: File to write; its ending chooses the format (`.png`, `.svg`, `.pdf`). Its folder is made.
        title: Heading of the picture.

    Returns:
        The path written.

    Raises:
        InputError: there are no samples, or matplotlib is not installed.
    """
    timelines = read_timelines(samples, releases)
    if not timelines:
        raise InputError("no memory was sampled, so there is nothing to draw; run some trials first")
    try:
        from vrampool.visualization import picture
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise InputError("drawing needs matplotlib; install the extra: pip install 'vrampool[viz]'") from None
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    picture.draw(timelines, target, title)
    return target
