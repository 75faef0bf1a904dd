"""What the site adds to the pages: files of the project that they link to, and what the cells of notebooks print.

On GitHub a link such as `../scenarios/paper.yaml` leads out of `docs/`. On the site it leads to a copy of the file,
below `source/`. Pages of `docs/notebooks/` are notebooks (jupytext's Markdown): their cells run when the site is built,
in an empty folder, and one that fails ends the build. No page may load anything from elsewhere.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from posixpath import dirname, join, normpath, relpath
from typing import Final

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import MarkdownExporter
from traitlets.config import Config

SOURCE: Final = "source/"
NOTEBOOKS: Final = "notebooks/"
CELL_S: Final = 300  # a cell that takes longer has failed
_LINK: Final = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")  # of a page: not to an address, nor within itself
_FROM_ELSEWHERE: Final = re.compile(
    r"<(?:script|img|iframe|link|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)
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


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Notebooks with what they print and draw; links as they lead on the site."""
    here = page.file.src_uri
    if here.startswith(NOTEBOOKS):
        try:
            markdown, pictures = _executed(markdown)
        except CellExecutionError as error:
            raise PluginError(f"docs/{here}: a cell failed\n{error}") from error
        for name, content in pictures.items():
            place = f"{here.removesuffix('.md')}/{name}"
            files.append(File.generated(config, place, content=content))
            markdown = markdown.replace(f"]({name})", f"]({relpath(place, dirname(here))})")

    def led(match: re.Match[str]) -> str:
        return relpath(_on_site(_in_project(here, match[1])), dirname(here) or ".")

    return _LINK.sub(led, markdown)


def on_page_content(html: str, *, page: Page, **_: object) -> str:
    """Docstrings name pages of `docs/`: on the page of the Python functions these are links."""
    return _NAMED.sub(r'<a href="\1.html">\1</a>', html) if page.file.src_uri == "api.md" else html


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    """Raises `PluginError` where a page would load something from elsewhere: the site is read without a network."""
    if (match := _FROM_ELSEWHERE.search(output)) is not None:
        raise PluginError(f"{page.file.src_uri}: loads something from elsewhere: {match[0]:.200}")
    return output


@cache
def _executed(text: str) -> tuple[str, dict[str, bytes]]:
    """A notebook's text with what its cells print and draw (by name); `mkdocs serve` runs the same text once."""
    notebook = jupytext.reads(text, "md")
    path = os.pathsep.join((dirname(sys.executable), os.environ.get("PATH", "")))  # cells type `slimsched`
    strict = {"PATH": path, "SHELLOPTS": "errexit:pipefail"}  # any command of a cell of bash that fails
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            coalesce_streams=True,
            startup_timeout=CELL_S,
            timeout=CELL_S,
            resources={"metadata": {"path": folder}},
            config=Config({"KernelManager": {"transport": "ipc", "ip": join(folder, "kernel")}}),  # no port is opened
        )
        client.execute(env={**os.environ, **strict})
    body, resources = MarkdownExporter().from_notebook_node(notebook)
    return body.replace("```bash\n%%bash\n", "```bash\n"), resources["outputs"]


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
