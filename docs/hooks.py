"""What the site adds to the pages: files of the project that they link to, below `source/`.

On GitHub a link such as `../scenarios/paper.yaml` leads out of `docs/`. On the site it leads to a copy of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import dirname, join, normpath, relpath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SOURCE: Final = "source/"
_LINK: Final = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")  # of a page: not to an address, nor within itself
_NAMED: Final = re.compile(r"docs/([\w-]+)\.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages link to outside of `docs/`, and what these pages link to."""
    waiting = list(files.documentation_pages())
    for page in waiting:
        for target in _targets(page):
            place = _on_site(target)
            path = join(dirname(config.config_file_path), target)
            if place.startswith(SOURCE) and place not in files.src_uris:
                added = File.generated(config, place, abs_src_path=path)
                files.append(added)
                waiting += [added] if added.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Links as they lead on the site."""
    here = page.file.src_uri

    def led(match: re.Match[str]) -> str:
        return relpath(_on_site(_in_project(here, match[1])), dirname(here) or ".")

    return _LINK.sub(led, markdown)


def on_page_content(html: str, *, page: Page, **_: object) -> str:
    """Docstrings name pages of `docs/`: on the page of the Python functions these are links."""
    return _NAMED.sub(r'<a href="\1.html">\1</a>', html) if page.file.src_uri == "api.md" else html


def _targets(page: File) -> Iterator[str]:
    for link in _LINK.findall(page.content_string):
        yield _in_project(page.src_uri, link)


def _in_project(page: str, link: str) -> str:
    """Where a page's link leads, from the project's root."""
    place = page.removeprefix(SOURCE) if page.startswith(SOURCE) else f"docs/{page}"
    return normpath(join(dirname(place), link))


def _on_site(target: str) -> str:
    """The same below the site's root."""
    return target.removeprefix("docs/") if target.startswith("docs/") else SOURCE + target
