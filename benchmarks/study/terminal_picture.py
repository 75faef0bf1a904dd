"""README's image of a terminal: the first code block of `docs/quickstart.md` as an SVG file that plays once.

    COLUMNS=100 slimsched run paper-live-quick           # in a terminal; its output goes into docs/quickstart.md
    python -m benchmarks.study.terminal_picture           # docs/images/quickstart.svg is made from that page

Lines appear one after another. Readers who prefer less motion, or whose viewer plays nothing, see all at once.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Final

from kit.files import atomic_path
from scenarios.show.tables import LABEL

PAGE: Final = Path("docs/quickstart.md")
PICTURE: Final = Path("docs/images/quickstart.svg")
_INDENT: Final = "    "
_ADVANCE: Final = 8.4  # width of a character at 14 pixels, in most monospaced faces; each line is stretched to it
_LEADING: Final = 19.0
_MARGIN: Final = 16.0
_TITLE: Final = 30.0
_QUICK_S: Final = 0.06  # from one line to the next
_PAUSE_S: Final = 0.8  # before the command's output, each answer and the table
_STYLE: Final = """
  .back { fill: #f6f8fa; stroke: #d0d7de }
  .dot { fill: #afb8c1 }
  text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328;
         white-space: pre; animation: appear 0.1s backwards }
  .asked { font-weight: bold; fill: #0550ae }
  .typed { fill: #116329; font-weight: bold }
  .frame { fill: #6e7781 }
  @keyframes appear { from { opacity: 0 } }
  @media (prefers-color-scheme: dark) {
    .back { fill: #0d1117; stroke: #30363d }
    .dot { fill: #484f58 }
    text { fill: #e6edf3 }
    .asked { fill: #79c0ff }
    .typed { fill: #7ee787 }
    .frame { fill: #8b949e }
  }
  @media (prefers-reduced-motion: reduce) { text { animation: none } }
"""


def first_block(page: str) -> list[str]:
    """Return the lines of a page's first code block, without its indentation."""
    lines: list[str] = []
    for line in page.splitlines():
        if line.startswith(_INDENT):
            lines.append(line.removeprefix(_INDENT))
        elif lines and line.strip():
            break
        elif lines:
            lines.append("")
    return "\n".join(lines).rstrip().splitlines()


def picture(lines: list[str]) -> str:
    """Return an SVG file that shows the lines as a terminal does, each at its time."""
    wide = 2 * _MARGIN + _ADVANCE * max(map(len, lines))
    high = _TITLE + 2 * _MARGIN + _LEADING * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="back" x="0.5" y="0.5" width="{wide - 1:g}" height="{high - 1:g}" rx="8"/>',
        *(f'<circle class="dot" cx="{20 + 18 * dot}" cy="18" r="5"/>' for dot in range(3)),
    ]
    now_s = 0.0
    for row, line in enumerate(lines):
        before = lines[row - 1] if row else ""
        is_new_part = before.startswith("$ ") or bool(_label(line)) or not before  # readers need time for it
        now_s += _PAUSE_S if is_new_part else _QUICK_S
        if line:
            parts.append(_text(line, _TITLE + _MARGIN + _LEADING * (row + 0.7), now_s))
    return "\n".join([*parts, "</svg>", ""])


def _label(line: str) -> str:
    """Return the label of an answer's first line; empty for others."""
    return line[2 : LABEL + 3].rstrip() if re.match(r"  \S", line) else ""


def _text(line: str, y: float, at_s: float) -> str:
    """Return one line, with its label separate; stretched, so that columns align in any face."""
    if label := _label(line):
        rest = LABEL + 3
        return "\n".join([_run(label, "asked", 2, y, at_s), _run(line[rest:], "", rest, y, at_s)])
    kind = "typed" if line.startswith("$ ") else "frame" if set(line) <= set("- ") else ""
    return _run(line.lstrip(), kind, len(line) - len(line.lstrip()), y, at_s)


def _run(text: str, kind: str, column: int, y: float, at_s: float) -> str:
    class_of = f' class="{kind}"' if kind else ""
    stretched = f'textLength="{_ADVANCE * len(text):.1f}" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<text{class_of} x="{_MARGIN + _ADVANCE * column:.1f}" y="{y:.1f}" {stretched} xml:space="preserve" '
        f'style="animation-delay:{at_s:.2f}s">{escape(text)}</text>'
    )


if __name__ == "__main__":
    with atomic_path(PICTURE) as temporary:
        temporary.write_text(picture(first_block(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
