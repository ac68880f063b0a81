"""Figures of matplotlib as SVG for a page: text stays text, colours follow the reader's theme, marks have tooltips."""

from __future__ import annotations

import io
import re
from html import escape, unescape

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from vrampool.visualization import palette
from vrampool.visualization.drawing import TIP

#: Colours that become variables of the page, with their names.
VARIABLES = {
    getattr(palette, name): f"--{name.lower()}"
    for name in (
        "INK", "MUTED", "GRID", "DRIVER", "STRANGERS", "BUDGET", "ACCENT", "FAINT", "COMPLETE", "PRUNED", "FAILED",
        "RETRIED", "PAPER",
    )
}  # fmt: skip
_FAMILY = re.compile(r'font-family: [^;"]*')
_SHORTHAND = re.compile(r'(font: [^;"]*?[\d.]+px) [^;"]*')
_TIP = re.compile(rf"""<g id=(["']){re.escape(TIP)}\d+\|(.*?)\1>""")


def to_svg(figure: Figure, name: str, alt: str) -> str:
    """Return a figure as an `<svg>` element.

    Args:
        figure: What is drawn.
        name: Distinguishes its ids from those of other figures on the page.
        alt: What the picture shows, for those who do not see it.
    """
    buffer = io.StringIO()
    FigureCanvasSVG(figure)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = _FAMILY.sub("font-family: var(--font)", text)
    text = _SHORTHAND.sub(r"\1 var(--font)", text)
    text = _TIP.sub(lambda found: f"<g><title>{escape(unescape(found.group(2)))}</title>", text)
    text = re.sub(
        r"<style.*?</style>", "", text, flags=re.DOTALL
    )  # it would hold for the whole page, which has its own
    # Ids of clip paths and glyphs are made of the salt; those of groups are not, and nothing refers to them.
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    head, _, rest = text.partition(">")
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', head)[:2]
    view = f'viewBox="0 0 {width} {height}"'
    attributes = f'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {view} role="img"'
    return f'<svg {attributes} aria-label="{escape(alt, quote=True)}">{rest}'
