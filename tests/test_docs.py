"""What the documents point at is there: files, headings, and modules that can be run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    (*ROOT.glob("*.md"), *(page for name in ("docs", "scenarios", "examples") for page in (ROOT / name).rglob("*.md")))
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
RUN = re.compile(  # now: what a page cites of an old commit may have gone
    r"python -m ((?:policies|sim|hw|calibrate|scenarios|slimsched|jobs|benchmarks|tests)[\w.]*+)(?!.*\n?.*of\s+commit)"
)


def slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", text).strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")}


def can_run(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    file = path.with_suffix(".py")
    return (path / "__main__.py").exists() or (
        file.exists() and '__name__ == "__main__"' in file.read_text(encoding="utf-8")
    )


def is_broken(page: Path, link: str) -> bool:
    """Whether it leads to no file of the project, or to no heading of it."""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in anchors(target))


def test_links_lead_somewhere() -> None:
    """From a page of the site to another one `make docs` looks itself."""
    site = ROOT / "docs"
    links = [(page, link) for page in PAGES for link in LINK.findall(page.read_text(encoding="utf-8"))]
    here = [
        (page, link)
        for page, link in links
        if not re.match("https?:|mailto:", link) and (site not in page.parents or link.startswith("../"))
    ]
    assert len(here) > 50
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in here if is_broken(page, link)] == []


def test_modules_that_are_named_can_be_run() -> None:
    """`python -m X` of a module that does nothing when it is run would be silent."""
    sources = [
        path
        for name in ("policies", "sim", "hw", "calibrate", "scenarios", "slimsched", "jobs", "benchmarks")
        for path in (ROOT / name).rglob("*.py")
    ]
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]  # it also names what has gone
    named = {module for page in (*pages, *sources) for module in RUN.findall(page.read_text(encoding="utf-8"))}
    assert named
    assert [module for module in sorted(named) if not can_run(module)] == []
