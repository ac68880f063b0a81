"""Writes the JSON lines of `gpu_training.py` as Markdown tables: medians over the repeats, with the peak's range.

python benchmarks/training_tables.py training.jsonl [more.jsonl]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

MIB = 2**20
Facts = dict[str, Any]


def tables(rows: list[Facts]) -> str:
    """Return one Markdown table for each measurement."""
    groups: dict[str, dict[str, list[Facts]]] = defaultdict(lambda: defaultdict(list))
    about: dict[str, str] = {}
    text = []
    for row in rows:
        if row["measurement"] == "machine":
            about |= row.pop("about")
            text.append(", ".join(f"{key} {value}" for key, value in row.items() if key != "measurement"))
        else:
            groups[row["measurement"]][row["case"]].append(row)
    for name, cases in groups.items():
        text += [f"\n### {name}", about.get(name, ""), ""]
        render = _residue_lines if name == "residue" else _peak_lines
        text += render(cases)
    return "\n".join(text)


def _peak_lines(cases: dict[str, list[Facts]]) -> list[str]:
    lines = ["| case | reserved peak, MiB | against the first | allocated peak, MiB | activations, MiB | step, s |"]
    lines.append("|---|---|---|---|---|---|")
    first = None
    for case, rows in cases.items():
        errors = [row["error"] for row in rows if "error" in row]
        if errors:
            lines.append(f"| {case} | {errors[0]} | | | | |")
            continue
        reserved = [row["max_torch_reserved_bytes"] / MIB for row in rows]
        middle = statistics.median(reserved)
        first = middle if first is None else first
        change = f"{100 * (middle / first - 1):+.0f} %" if first else ""
        spread = f"{middle:.0f} ({min(reserved):.0f} to {max(reserved):.0f})"
        allocated = _median(rows, "max_allocated_bytes", MIB, 0)
        lines.append(
            f"| {case} | {spread} | {change} | {allocated} | {_median(rows, 'activations_bytes', MIB, 0)} "
            f"| {_median(rows, 'step_s', 1, 3)} |"
        )
    return lines


def _residue_lines(cases: dict[str, list[Facts]]) -> list[str]:
    lines = ["| case | left on the card after a trial, MiB: least, median, most | after the last |", "|---|---|---|"]
    for case, rows in cases.items():
        left = [value / MIB for row in rows for value in row.get("left_bytes", []) if value is not None]
        if not left:
            lines.append(f"| {case} | {rows[0].get('error', 'no NVML')} | |")
            continue
        last = statistics.median(row["left_bytes"][-1] / MIB for row in rows)
        lines.append(f"| {case} | {min(left):.0f}, {statistics.median(left):.0f}, {max(left):.0f} | {last:.0f} |")
    return lines


def _median(rows: list[Facts], key: str, unit: int, digits: int) -> str:
    values = [row[key] / unit for row in rows if row.get(key) is not None]
    return f"{statistics.median(values):.{digits}f}" if values else ""


def main() -> int:
    """Print the tables of the files named on the command line."""
    lines = [line for name in sys.argv[1:] for line in Path(name).read_text().splitlines()]
    print(tables([json.loads(line) for line in lines]))
    return 0 if lines else 2


if __name__ == "__main__":
    sys.exit(main())
