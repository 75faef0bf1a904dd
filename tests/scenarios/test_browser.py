"""The report in a real browser: at three widths, in both styles. SLIMSCHED_PICTURES=DIR keeps what it looks like."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.show.report import build_report
from tests.browser import WHY_NOT, Browser, browser
from tests.scenarios.folders import run_folder

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.slow]

PICTURES = os.environ.get("SLIMSCHED_PICTURES")
LETTERS_PX = 8.0  # high, at least, with what is above and below
BEYOND = """[...document.querySelectorAll('body *')].filter(e => {
  const r = e.getBoundingClientRect();
  return r.width > 0 && (r.right > innerWidth + 1 || r.left < -1 || e.scrollWidth > e.clientWidth + 1 && e.clientWidth
    && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX));
}).map(e => e.tagName + ' ' + e.textContent.trim().slice(0, 40))"""
COVERED = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) => p.left + 1 < q.right && q.left + 1 < p.right
    && p.top + 2 < q.bottom && q.top + 2 < p.bottom).map(([b, q]) => a + ' on ' + b)); })"""
LETTERS = "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
CONTRAST = """(() => {
  const light = text => { const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255).map(
    v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!c.startsWith('rgba(0, 0, 0, 0')) return light(c); } return 1; };
  return Math.min(...[...document.querySelectorAll('h1, h2, h3, p, td, th, dt, dd, figcaption, .badge')].map(e => {
    const [a, b] = [light(getComputedStyle(e).color), behind(e)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05); })); })()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("random", "tuned:lookahead", "tide")
    return build_report(run_folder(tmp_path_factory.mktemp("run"), routers=names, seeds=(0, 1)))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.mark.parametrize("style", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 900, 1400])
def test_it_can_be_read(width: int, style: str, page: Path, chromium: Browser) -> None:
    """Nothing lies beyond the screen, nor on something else; letters are high enough, and stand out."""
    chromium.open(page, width, style)
    if PICTURES:
        chromium.picture(Path(PICTURES) / f"report-{width}-{style}.png")
    assert chromium.value("innerWidth") == width
    assert chromium.value("document.documentElement.scrollWidth") <= width
    assert chromium.value(BEYOND) == []
    assert chromium.value("document.querySelectorAll('svg g[id^=xtick] text').length") > 20
    assert chromium.value(COVERED) == []
    assert chromium.value(LETTERS) >= LETTERS_PX
    assert chromium.value(CONTRAST) >= 4.5  # WCAG 2.2, 1.4.3


def test_who_prefers_dark_pages_gets_one(page: Path, chromium: Browser) -> None:
    """Charts, too: their black letters are drawn white."""
    found = {}
    for style in ("light", "dark"):
        chromium.open(page, 900, style)
        of = "getComputedStyle(document.body).backgroundColor", "getComputedStyle(document.querySelector('svg')).filter"
        found[style] = tuple(map(chromium.value, of))
    assert found["light"] == ("rgb(255, 255, 255)", "none")
    assert found["dark"] == ("rgb(21, 23, 26)", "invert(1) hue-rotate(180deg)")


def test_the_answers_are_what_is_seen_first(page: Path, chromium: Browser) -> None:
    """On a phone's first screen: who won, and whether to believe it."""
    chromium.open(page, 420, "light")
    assert chromium.value("document.querySelector('.box').getBoundingClientRect().top") < 200
    assert chromium.value("document.querySelectorAll('.box h2')[1].getBoundingClientRect().bottom") < 900
