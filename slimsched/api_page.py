"""The page of the Python functions, made from their docstrings so that it can't lie.

`python -m slimsched.api_page > docs/api.md` writes it anew. `tests/slimsched/test_api_page.py` runs its examples.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from textwrap import dedent
from typing import Any, Final

import scenarios.gym
import slimsched

HEAD: Final = """# From Python

Made from the docstrings of `slimsched/` by `python -m slimsched.api_page`: edit them there.

    import slimsched

{doc}

Numbers are called as in [what every number means](metrics.md). Shares and accuracies are from 0 to 1; a name ends with
its unit: `_s` seconds, `_j` joules, `_w` watts, `_img_s` images a second, `_bytes` bytes. The examples are one program,
in this order; a test runs it.

| function | does |
|---|---|
{functions}

| result | is |
|---|---|
{results}

## Gymnasium

{gym}"""
SECTIONS: Final = ("Args", "Attributes", "Returns", "Raises", "Example")
_ITEM = re.compile(r"^(\*{0,2}\w+(?:, \w+)*): (.*)$")


def api_page() -> str:
    """The whole page: functions first, then what they return and take."""
    public = {name: getattr(slimsched, name) for name in slimsched.__all__}
    functions = {name: found for name, found in public.items() if inspect.isfunction(found)}
    order = {name: functions[name] for name in _in_source(functions)}
    errors = {name: found for name, found in public.items() if inspect.isclass(found) and issubclass(found, Exception)}
    others = {name: found for name, found in public.items() if name not in functions and name not in errors}
    parts = [
        HEAD.format(
            doc=_paragraphs(slimsched.__doc__ or ""),
            functions=_list(order),
            results=_list({**others, **errors}),
            gym=_body(inspect.getdoc(scenarios.gym) or ""),
        )
    ]
    parts += [f"## `{name}`\n\n{_function(name, found)}" for name, found in order.items()]
    parts += [f"## `{name}`\n\n{_class(found)}" for name, found in {**others, **errors}.items()]
    return "\n".join(parts)


def _in_source(functions: dict[str, Any]) -> list[str]:
    return sorted(functions, key=lambda name: functions[name].__code__.co_firstlineno)


def _list(found: dict[str, Any]) -> str:
    rows = [f"| [`{name}`](#{name.lower()}) | {_first(each)} |" for name, each in found.items()]
    return "\n".join(rows)


def _first(found: Any) -> str:
    """The first sentence of what is said of it."""
    text = " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.]) (?=[A-Z])", text)[0].replace("|", "\\|")


def _function(name: str, found: Any) -> str:
    signature = inspect.signature(found)
    lines, only_named = list[str](), False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not only_named:
            lines, only_named = [*lines, "*"], True
        default = "" if each.default is each.empty else f" = {each.default!r}"
        stars = "**" if each.kind is each.VAR_KEYWORD else ""
        lines.append(f"{stars}{each.name}: {each.annotation}{default}")
    code = [f"    {name}(", *(f"        {line}," for line in lines), f"    ) -> {signature.return_annotation}"]
    return "\n".join(code) + "\n\n" + _body(inspect.getdoc(found) or "")


def _class(found: Any) -> str:
    parts = [_body(inspect.getdoc(found) or "")]
    if is_dataclass(found):
        own = ", ".join(f"`{each.name}: {each.type}`" for each in fields(found))
        parts.append(f"Fields: {own}.\n")
    methods = [
        f"- `.{name}{'' if isinstance(each, property) else '()'}`: {_first(each)}"
        for name, each in vars(found).items()
        if not name.startswith("_") and isinstance(each, property | type(_class)) and inspect.getdoc(each)
    ]
    return "\n".join([*parts, *(["\n".join(methods) + "\n"] if methods else [])])


def _body(doc: str) -> str:
    """A docstring as Markdown: sections as lists, examples as code."""
    return "\n".join(_sections(doc))


def _sections(doc: str) -> Iterator[str]:
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", doc, flags=re.MULTILINE)
    yield _paragraphs(parts[0])
    yield ""
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        if title == "Example":
            yield f"```python\n{dedent(text).strip()}\n```\n"
        else:
            yield f"{title}:\n\n" + "\n".join(_items(dedent(text))) + "\n"


def _items(text: str) -> Iterator[str]:
    """`name: meaning` with what is indented below it, one a line; other text as it is."""
    for paragraph in re.split(r"\n(?=\S)", text.strip()):
        line = _linked(" ".join(paragraph.split()))
        item = _ITEM.match(line)
        names = ", ".join(f"`{name}`" for name in item[1].split(", ")) if item else ""
        yield f"- {names}: {item[2]}" if item else line


def _paragraphs(text: str) -> str:
    return "\n\n".join(_linked(" ".join(part.split())) for part in text.strip().split("\n\n"))


def _linked(text: str) -> str:
    """Pages of the documents as links from where the page lies."""
    return re.sub(r"docs/([\w-]+[.]md)", r"[\1](\1)", text)


if __name__ == "__main__":
    sys.stdout.write(api_page())
