"""The report as one HTML file: no scripts, nothing fetched, light and dark by the reader's own choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from vrampool.memory.explaining import Driver, ModelState
from vrampool.messages import EndKind
from vrampool.reports.content import WIDTH_IN, Report, Section
from vrampool.reports.svg import to_svg
from vrampool.units import format_bytes
from vrampool.visualization.attempts import Attempt

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
#: Told what is being done, and how much of all is done by then, from 0 to 1.
OnStep = Callable[[str, float], None]


def write_page(report: Report, path: Path, on_step: OnStep = lambda _what, _part: None) -> None:
    """Write the report.

    Raises:
        OSError: the file cannot be written.
    """
    parts = [_head(report), _tiles(report), _advice(report)]
    for index, section in enumerate(report.sections):
        on_step(section.title, index / len(report.sections))
        parts.append(_section(report, section))
        if section.key == "parameters" and report.explanation.drivers:
            parts.append(_drivers(report.explanation.drivers, report.explanation.model))
    parts += [_table(report), _foot(report)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")
    on_step("written", 1.0)


def _head(report: Report) -> str:
    css = Path(__file__).with_name("style.css").read_text()
    devices = ", ".join(sorted({name for _, name in report.study.devices}))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="vrampool">
<title>{escape(report.title)}</title>
<style>{css}</style>
</head>
<body>
<main>
<h1>{escape(report.study.name)}</h1>
<p class="sub">{escape(report.span)} &middot; {escape(devices)}</p>"""


def _tiles(report: Report) -> str:
    tiles = "".join(
        f'<div class="tile"><div class="name">{escape(tile.name)}</div><div class="value">{escape(tile.value)}</div>'
        f'<div class="note">{escape(tile.note)}</div></div>'
        for tile in report.tiles
    )
    return f'<div class="tiles">{tiles}</div>'


def _advice(report: Report) -> str:
    if not report.advice:
        body = (
            '<p class="caption">Nothing stands out: memory was leased about as it was used, with little time lost.</p>'
        )
    else:
        items = "".join(
            f"<li><h3>{escape(item.title)}</h3><p class='note'>{escape(item.evidence)}</p>"
            f"<p class='action'>{escape(item.action)}</p></li>"
            for item in report.advice
        )
        body = f'<ol class="advice">{items}</ol>'
    return f'<section id="advice"><h2>What to change</h2>{body}</section>'


def _section(report: Report, section: Section) -> str:
    figure = Figure(figsize=(WIDTH_IN, section.height_in), layout="constrained")
    section.draw(figure, report.study)
    picture = to_svg(figure, section.key, f"{section.title}. {section.caption}")
    return (
        f'<section id="{section.key}"><h2>{escape(section.title)}</h2>'
        f'<p class="caption">{escape(section.caption)}</p><div class="picture">{picture}</div></section>'
    )


def _drivers(drivers: tuple[Driver, ...], model: ModelState | None) -> str:
    rows = "".join(
        f'<tr><td>{escape(driver.name)}</td><td class="left">{escape(driver.direction)}</td>'
        f"<td>&times; {driver.factor:.2f}</td><td>{driver.share:.0%}</td></tr>"
        for driver in drivers
    )
    quality = ""
    if model is not None:
        others = f" ({model.others} of them of other studies with the same code)" if model.others else ""
        quality = (
            f"Learned from {model.trials} trials{others}; the median prediction is off by {model.median_error:.0%}, "
            f"and for {model.under:.0%} of them too little would be asked."
        )
    return (
        '<section id="drivers"><h2>What drives memory</h2>'
        '<p class="caption">By how much memory changes from the lowest tenth of a parameter to its highest. '
        f"{quality}</p>"
        '<div class="scroll"><table><thead><tr><th>parameter</th><th class="left">memory</th><th>factor</th>'
        f"<th>share of all effects</th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _table(report: Report) -> str:
    names = ["trial", "how it ended", "try", "asked for", "predicted", "lease", "peak", "residue", "seconds"]
    params = list(report.study.distributions)
    head = "".join(
        f"<th{' class=left' if index == 1 else ''}>{escape(name)}</th>" for index, name in enumerate([*names, *params])
    )
    rows = "".join(f"<tr>{''.join(_cells(attempt, params))}</tr>" for attempt in report.study.attempts)
    return (
        f"<section><details><summary>All {len(report.study.attempts)} attempts</summary>"
        '<div class="scroll" tabindex="0" role="region" aria-label="All attempts">'
        f"<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div></details></section>"
    )


def _cells(attempt: Attempt, params: list[str]) -> Iterator[str]:
    memory = attempt.memory
    kind = "ok" if attempt.end == EndKind.COMPLETE else "warn" if attempt.end == EndKind.PRUNED else "bad"
    yield f"<td>{attempt.number}</td>"
    yield f'<td class="left {kind}">{escape(attempt.how)}</td>'
    yield f"<td>{attempt.try_number}</td>"
    yield f"<td>{format_bytes(memory.request_bytes) if memory.request_bytes else 'a whole device'}</td>"
    for value in (memory.predicted_bytes, memory.lease_bytes, memory.peak_bytes, attempt.residue_bytes):
        yield f"<td>{format_bytes(value) if value is not None else '&ndash;'}</td>"
    yield f"<td>{attempt.end_s - attempt.start_s:.1f}</td>"
    for name in params:
        value = memory.params.get(name)
        text = "&ndash;" if value is None else f"{value:.5g}" if isinstance(value, float) else escape(str(value))
        yield f"<td>{text}</td>"


def _foot(report: Report) -> str:
    made = time.strftime("%d %b %Y %H:%M", time.localtime(report.made_at))
    return (
        f"<footer>Made by vrampool on {made}. Times are of this machine's clock. Bytes are binary (1 GiB = 1024&sup3;)."
        "</footer>\n</main>\n</body>\n</html>\n"
    )
