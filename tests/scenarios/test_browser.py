"""The report in a real browser: at three widths, in both styles. SLIMSCHED_PICTURES=DIR keeps what it looks like."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.show.report import build_report
from tests.browser import WHY_NOT, Browser, browser
from tests.scenarios.folders import run_folder

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.release]

PICTURES = os.environ.get("SLIMSCHED_PICTURES")
LETTERS_PX = 8.0  # high, at least, with what is above and below
BEYOND = """[...document.querySelectorAll('body *:not(.table *)')].filter(e => {
  const r = e.getBoundingClientRect();
  return r.width > 0 && (r.right > innerWidth + 1 || r.left < -1);
}).map(e => e.tagName + ' ' + e.textContent.trim().slice(0, 40))"""
COVERED = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(
    t => [t.textContent, t.getBoundingClientRect(), t.closest('g[id^=xtick]') ? GAP : -1]);
  return boxes.flatMap(([a, p, gap], i) => boxes.slice(i + 1).filter(([b, q, other]) => {
    const apart = Math.min(gap, other);
    return p.left - apart < q.right && q.left - apart < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom;
  }).map(([b, q]) => a + ' on ' + b)); })"""
COVERED = COVERED.replace("GAP", "3")  # pixels between ticks, so that no two look like one number
OUTSIDE = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const at = svg.getScreenCTM(), frames = {'': svg.getBoundingClientRect()};
  for (const clip of svg.querySelectorAll('clipPath')) {
    const [x, y, w, h] = ['x', 'y', 'width', 'height'].map(name => +clip.querySelector('rect').getAttribute(name));
    const corner = new DOMPoint(x, y).matrixTransform(at), end = new DOMPoint(x + w, y + h).matrixTransform(at);
    frames[`url(#${clip.id})`] = {left: corner.x, top: corner.y, right: end.x, bottom: end.y}; }
  return [...svg.querySelectorAll('[clip-path], text')].filter(e => {
    if (getComputedStyle(e).strokeOpacity < 1) return false;  // an interval: it may go on behind the frame
    const p = e.getBoundingClientRect(), q = frames[e.getAttribute('clip-path') || ''];
    return p.left < q.left - 2 || p.right > q.right + 2 || p.top < q.top - 2 || p.bottom > q.bottom + 2;
  }).map(e => (e.closest('g[id]') || e).id + ' ' + e.textContent.trim()); })"""
LETTERS = "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
SEEN = """
  const parts = text => text.match(/[0-9.]+/g).map(Number);
  const blend = (of, share, over) => of.map((v, i) => share * v + (1 - share) * over[i]);
  const light = of => { const [r, g, b] = of.slice(0, 3).map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (!c.startsWith('rgba(0, 0, 0, 0')) return parts(c).slice(0, 3); } return [255, 255, 255]; };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + .05) / (y + .05); };
"""
CONTRAST = f"""(() => {{ {SEEN}
  return Math.min(...[...document.querySelectorAll(
    'h1, h2, h3, p, a, td, th, dt, dd, figcaption, small, .badge')].map(
    e => contrast(parts(getComputedStyle(e).color), behind(e)))); }})()"""
DRAWN = f"""(() => {{ {SEEN}
  const found = {{solid: [], pale: [], grid: []}}, paper = behind(document.querySelector('svg')), looks = new Map();
  const grid = getComputedStyle(document.querySelector('svg g[id^=xtick] path')).stroke;
  for (const e of document.querySelectorAll('svg path[style], svg use[style]')) {{
    if (looks.has(e.getAttribute('style')) || e.closest('defs, clipPath, pattern')) continue;
    const style = getComputedStyle(e);
    looks.set(e.getAttribute('style'), [[style.stroke, style.strokeOpacity * style.opacity],
      [style.fill, style.fillOpacity * style.opacity]]);
  }}
  for (const [color, share] of [...looks.values()].flat()) {{
    if (!share || color === 'none' || color.startsWith('url') || String(parts(color)) === String(paper)) continue;
    found[color === grid ? 'grid' : share < 1 ? 'pale' : 'solid'].push(
      contrast(blend(parts(color), share, paper), paper)); }}
  return Object.fromEntries(Object.entries(found).map(([kind, of]) => [kind, Math.min(...of)])); }})()"""
UNTOLD = """[...document.querySelectorAll('figure')].map(f => {
  const told = f.querySelector('figcaption').textContent, sentences = told.split(/[.] |[.]$/).filter(Boolean);
  const pale = [...f.querySelectorAll('svg path')].some(e => {
    const s = getComputedStyle(e); return s.opacity * s.strokeOpacity * s.fillOpacity < 1; });
  return [told, sentences.length >= 2 && /^[A-Z]/.test(sentences.at(-1)), !pale || /pale|shaded/i.test(told)];
}).filter(([told, says, explains]) => !(says && explains)).map(([told]) => told)"""
HANDED = """(async () => {
  const frame = document.body.appendChild(document.createElement('iframe')), got = [];
  const viewer = frame.contentWindow;
  let opened, asker;
  window.open = address => { opened = address; return viewer; };
  const handed = new Promise(done => { viewer.postMessage = (data, origin) => {
    got.push(origin);
    if (data !== 'PING') return done({...data.perfetto, asker});
    for (const origin of ['https://elsewhere.example', 'https://ui.perfetto.dev']) {
      asker = origin;
      window.dispatchEvent(new MessageEvent('message', {data: 'PONG', source: viewer, origin}));
    }
  }; });
  document.querySelector('a[data-trace]').click();
  const {buffer, title, asker: to} = await handed;
  return {opened, title, to, text: new TextDecoder().decode(buffer), origins: [...new Set(got)]};
})()"""


@pytest.fixture(scope="module", params=["alike", "far apart"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A usual one, and one whose means lie far apart, with intervals wider than any page."""
    names = ("random", "tuned:lookahead", "tuned:compass")
    usual = {} if request.param == "alike" else {"slower": lambda index, seed: 40.0**index * (1.0 + 2.0 * seed)}
    return build_report(
        run_folder(tmp_path_factory.mktemp("run"), routers=names, seeds=(0, 1), profiles=("a", "b"), **usual)
    )


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.mark.parametrize("style", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 900, 1400])
def test_report_is_readable_at_every_width_and_style(width: int, style: str, page: Path, chromium: Browser) -> None:
    """No element overflows the screen (tables scroll) or a chart's frame, or covers another; letters are large
    enough, and lines have enough contrast."""
    chromium.open(page, width, style)
    if PICTURES:
        chromium.picture(Path(PICTURES) / f"{page.parent.name}-{width}-{style}.png")
    assert chromium.value("innerWidth") == width
    assert chromium.value("document.documentElement.scrollWidth") <= width
    assert chromium.value(BEYOND) == []
    assert chromium.value("document.querySelectorAll('svg g[id^=xtick] text').length") > 20
    assert chromium.value(COVERED) == []
    assert chromium.value(OUTSIDE) == []
    assert chromium.value(LETTERS) >= LETTERS_PX
    assert chromium.value(CONTRAST) >= 4.5  # WCAG 2.2, 1.4.3
    if style == "dark":  # charts are turned by a filter, which no computed style tells
        assert "invert" in chromium.value("getComputedStyle(document.querySelector('figure svg')).filter")
        return
    drawn = chromium.value(DRAWN)
    assert drawn["solid"] >= 3  # 1.4.11
    assert drawn["pale"] >= 1.25
    assert 1.4 <= drawn["grid"] <= 2.5  # it is seen, and does not stand out


def test_every_chart_says_what_to_see(page: Path, chromium: Browser) -> None:
    """In a sentence of its own, behind the one that shows what it is; and what its pale lines are."""
    chromium.open(page, 1400, "light")
    assert chromium.value("document.querySelectorAll('figure').length") > 10
    assert chromium.value(UNTOLD) == []


def test_a_click_hands_a_run_to_perfetto(page: Path, chromium: Browser) -> None:
    """Its bytes, once that page has answered, and to no other page; a file may do it, and fetches nothing."""
    chromium.open(page, 900, "light")
    told = chromium.value(HANDED)
    assert (told["opened"], told["title"]) == ("https://ui.perfetto.dev/", "random, simulated")
    assert (told["to"], told["origins"]) == ("https://ui.perfetto.dev", ["https://ui.perfetto.dev"])
    assert told["text"] == (page.parent / "simulation" / "random-seed0" / "timeline.json").read_text(encoding="utf-8")
    assert chromium.value("performance.getEntriesByType('resource').length") == 0


def test_the_answers_are_what_is_seen_first(page: Path, chromium: Browser) -> None:
    chromium.open(page, 420, "light")
    assert chromium.value("document.querySelector('.box').getBoundingClientRect().top") < 200
    assert chromium.value("document.querySelectorAll('.box h2')[1].getBoundingClientRect().bottom") < 900
