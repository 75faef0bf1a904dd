"""Colors of charts, on white and on dark paper: what stands out on one stands out as much on the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from numpy.typing import NDArray

WHITE, DARK = "#ffffff", "#15171a"  # paper; the page's style sheet takes the second one from here
_HEX: Final = re.compile(r"#[0-9a-f]{6}\b")
_OF_LIGHT: Final = np.array([0.2126, 0.7152, 0.0722])  # how bright red, green and blue seem
_GLARE: Final = 0.05  # what a screen reflects
_MORE: Final = 1.2  # thin bright lines on dark paper look weaker than their contrast says
_MOST_OF_HUE: Final = 6.0  # contrast: brighter hues are all white
_GREY: Final = 0.1  # whose red, green and blue differ by less has no hue


def contrast(one: str, other: str) -> float:
    """From 1 (alike) to 21 (black on white): WCAG 2.2, "contrast ratio"."""
    darker, lighter = sorted(float(_OF_LIGHT @ _linear(color)) + _GLARE for color in (one, other))
    return lighter / darker


def on_dark(color: str) -> str:
    """The color of this one's hue that stands out as much on dark paper as this one does on white."""
    if color == WHITE:
        return DARK
    light = _linear(color)
    now = float(_OF_LIGHT @ light)
    more = contrast(color, WHITE) ** _MORE
    more = more if np.ptp(to_rgb(color)) < _GREY else min(more, _MOST_OF_HUE)
    wanted = more * (float(_OF_LIGHT @ _linear(DARK)) + _GLARE) - _GLARE
    if wanted < now:
        return _hex(light * wanted / now)
    return _hex(light + (1 - light) * min(1.0, (wanted - now) / (1 - now)))


def themed(svg: str) -> str:
    """A chart whose colors are variables of the page, each with itself where the page gives none."""
    svg = re.sub(r'\b(fill|stroke)="(#[0-9a-f]{6})"', r'style="\1: \2"', svg)
    return _HEX.sub(lambda found: f"var({variable(found[0])}, {found[0]})", svg)


def variable(color: str) -> str:
    """The name that a page knows a color by."""
    return f"--c{color[1:]}"


def colors_of(html: str) -> Iterator[str]:
    """The colors that themed charts of a page have, each once, in order."""
    yield from sorted(set(re.findall(r"var\(--c[0-9a-f]{6}, (#[0-9a-f]{6})\)", html)))


def _linear(color: str) -> NDArray[np.float64]:
    """Red, green and blue as light, not as they are written."""
    written = np.array(to_rgb(color))
    return np.where(written <= 0.04045, written / 12.92, ((written + 0.055) / 1.055) ** 2.4)


def _hex(light: NDArray[np.float64]) -> str:
    light = np.clip(light, 0, 1)
    red, green, blue = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055).tolist()
    return to_hex((red, green, blue))
