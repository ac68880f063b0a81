"""Colours of trials: the same trial has the same colour in every picture, and neighbours differ."""

from __future__ import annotations

import math
import zlib

Colour = tuple[float, float, float]

_GOLDEN = (math.sqrt(5) - 1) / 2
_LIGHTNESS = (0.64, 0.74, 0.55)
_CHROMA = 0.125


def trial_colour(study: str, number: int) -> Colour:
    """Return red, green and blue within [0, 1]. Hues of following numbers lie far apart (steps of the golden ratio)."""
    hue = 2 * math.pi * ((zlib.crc32(study.encode()) / 2**32 + number * _GOLDEN) % 1)
    return _oklch(_LIGHTNESS[number % len(_LIGHTNESS)], _CHROMA, hue)


def _oklch(lightness: float, chroma: float, hue: float) -> Colour:
    """Convert from OKLCH, in which equal lightness looks equally light (HSV's yellow would outshine its blue)."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    l_cone = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m_cone = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s_cone = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * l_cone - 3.3077115913 * m_cone + 0.2309699292 * s_cone
    green = -1.2684380046 * l_cone + 2.6097574011 * m_cone - 0.3413193965 * s_cone
    blue = -0.0041960863 * l_cone - 0.7034186147 * m_cone + 1.7076147010 * s_cone
    return (_gamma(red), _gamma(green), _gamma(blue))


def _gamma(value: float) -> float:
    value = min(max(value, 0.0), 1.0)
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055


#: What is drawn in what colour, on white. The report's page has another value for each where the reader likes it dark.
INK = "#2b2f36"
MUTED = "#6f7783"
GRID = "#e6e8ec"
DRIVER = "#c3c8cf"
STRANGERS = "#8d95a1"
BUDGET = "#b4233a"
ACCENT = "#3567a6"
FAINT = "#a9bfdb"
COMPLETE = "#2f8577"
PRUNED = "#b8862c"
FAILED = "#c2473f"
RETRIED = "#8a63a8"
PAPER = "#fffffe"  #: what lies behind a label: white, told apart from a white that must stay white
DARK = {
    INK: "#e3e6eb",
    MUTED: "#98a1ae",
    GRID: "#2d323a",
    DRIVER: "#59616c",
    STRANGERS: "#7b8492",
    BUDGET: "#ff7a86",
    ACCENT: "#74a5e0",
    FAINT: "#3f5a7d",
    COMPLETE: "#55b8a6",
    PRUNED: "#dcae57",
    FAILED: "#f07c72",
    RETRIED: "#b691d4",
    PAPER: "#15181d",
}
END_COLOURS = {"complete": COMPLETE, "pruned": PRUNED, "oom": FAILED, "infeasible": FAILED}
#: Marker (matplotlib's, plotly's) of each end; the same letter for colour-blind readers as for others.
END_MARKERS = {
    "complete": ("o", "circle"),
    "pruned": ("v", "triangle-down"),
    "oom": ("X", "x"),
    "infeasible": ("s", "square"),
}
OTHER_MARKER = ("D", "diamond")


def end_colour(end: str) -> str:
    """Return the colour of an `EndKind`."""
    return END_COLOURS.get(end, RETRIED)
