"""What the pages of the site tell a reader to do works: commands, files, programs. `make docs` builds it, strictly."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
from mkdocs.exceptions import PluginError

from benchmarks.study.commands_page import commands_markdown
from kit.errors import InputError
from scenarios.files.scenario_keys import RewardSection
from slimsched.cli import main
from tests.test_docs import LINK, PAGES, ROOT
from tests.tutorial_log import FILE, tutorial_log
from tests.typed import typed

DOCS = ROOT / "docs"
FENCED = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MEASURING = DOCS / "tutorials" / "engineer.md"  # two minutes of real time
SERVING = DOCS / "how-to" / "serve.md"  # tests/scenarios/test_serve.py
TUTORIALS = ("researcher", "operator")
COMMAND = re.compile(r"^(?:    |\$ |)(slimsched [^&|#\n]*)", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A fenced block of a page: what is written to a file, or done."""

    language: str
    file: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        lines = self.text.replace("\\\n", " ").splitlines() if self.language == "sh" else []
        return [shlex.split(line, comments=True) for line in lines if line.strip()]


def steps(page: Path) -> list[Step]:
    return [Step(*found) for found in FENCED.findall(page.read_text(encoding="utf-8"))]


def beside(page: Path) -> Iterator[Path]:
    """Files that a reader takes from the page: its links to no other page."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "/" not in link and not link.startswith("#") and not link.partition("#")[0].endswith(".md"):
            yield page.parent / link


def words(line: str) -> set[str]:
    return set(re.findall(r"[^\W\d]\w*", line))


def follow(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    """As a reader does, from top to bottom, in an empty folder; gives each step when it is done."""
    for path in beside(page):
        shutil.copy(path, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for step in steps(page):
        if step.file:
            Path(step.file).write_text(step.text, encoding="utf-8")
        elif step.language == "python":
            done = subprocess.run(
                [sys.executable, "-c", step.text], check=True, timeout=200, stdout=subprocess.PIPE, text=True
            )
            sys.stdout.write(done.stdout)
        for program, *arguments in step.commands:
            assert program == "slimsched"
            assert main(arguments) == 0, shlex.join(arguments)
        yield step


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize(
    "page",
    [*(DOCS / "tutorials" / f"{name}.md" for name in TUTORIALS), *sorted({*DOCS.glob("how-to/*.md")} - {SERVING})],
    ids=lambda page: page.stem,
)
def test_site_page_commands_run_and_print_the_text_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[set[str]] = []
    for step in follow(page, tmp_path, monkeypatch):
        told = capsys.readouterr()
        said += [words(line) for line in (told.out + told.err).splitlines()]
        if step.language == "text":
            shown = step.text.splitlines()
            assert [line for line in shown if not any(words(line) <= each for each in said)] == []


@pytest.mark.timeout(1200)
@pytest.mark.release
def test_the_engineers_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It calibrates two devices and serves for real, so what is printed differs from host to host."""
    assert list(follow(MEASURING, tmp_path, monkeypatch))


def test_a_tutorial_has_steps() -> None:
    for page in (*TUTORIALS, MEASURING.stem):
        assert sum(len(step.commands) for step in steps(DOCS / "tutorials" / f"{page}.md")) >= 6


def test_every_command_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wrong, lines = [], 0
    for page in PAGES:
        for line in COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
            lines += 1
            try:
                typed(shlex.split(line.replace(" ... ", " "))[1:])
            except InputError as error:
                if "no such file" not in str(error) or " scenarios/" in line:
                    wrong.append(f"{page.relative_to(ROOT)}: {line}: {error}")
            except SystemExit:  # --help
                pass
    assert lines > 100
    assert wrong == []


def test_the_page_of_commands_is_up_to_date() -> None:
    """`docs/commands.md` is what `python -m benchmarks.study.commands_page` writes."""
    assert (DOCS / "commands.md").read_text(encoding="utf-8") == commands_markdown()


def test_a_page_that_loads_something_from_elsewhere_ends_the_build() -> None:
    check = runpy.run_path(str(DOCS / "hooks.py"))["on_post_page"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    fine = '<script src="../assets/x.js"></script><a href="https://example">out</a>'
    assert check(fine, page=page) == fine
    for loads in (
        '<script src="https://cdn.example/mathjax.js"></script>',
        "<link rel='stylesheet' href='//fonts.example/x.css'>",
        "<img alt=picture src=http://example/x.png>",
    ):
        with pytest.raises(PluginError, match=r"index\.md: loads something from elsewhere"):
            check(fine + loads, page=page)


def test_the_log_of_the_tutorial_is_what_its_maker_makes(tmp_path: Path) -> None:
    import gzip

    assert gzip.decompress(FILE.read_bytes()).decode() == tutorial_log(tmp_path)


def test_the_page_of_gymnasium_says_what_a_step_has() -> None:
    """The sizes, by the shapes that it gives for `paper`; the weights; and what the last `info` holds."""
    page = (DOCS / "how-to" / "gymnasium.md").read_text(encoding="utf-8")
    env = gymnasium.make("slimsched.gym:SlimCluster-v0", scenario="paper", duration_s=0.02)
    observation, info = env.reset(seed=0)
    sizes = [int(size) for part in re.findall(r"has (\d), (\d) and (\d)\.", page) for size in part]
    assert sizes == env.action_space.nvec.tolist()  # type: ignore[attr-defined]
    assert f"observed: {len(observation)} for `paper`" in page
    assert len(observation) == 2 + 3 * sizes[0]
    assert info["width_mask"].shape == (sizes[0], sizes[1])
    assert env.unwrapped.action_masks().shape == (sum(sizes),)  # type: ignore[attr-defined]
    assert [weight for weight in RewardSection.model_fields if f"`reward.{weight}`" not in page] == ["centre"]
    is_over = False
    while not is_over:
        _, _, _, is_over, info = env.step(env.action_space.sample())
    assert [name for name in (*info, *info["figures"]) if name not in page] == []
