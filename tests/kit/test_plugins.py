"""A user's own class: what is said of it and refused before anything of it runs, and what its code is known by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.errors import InputError
from kit.plugins import REFUSING, code_hash, own_class, telling

RUNS = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user is; each of his modules leaves a file when it is run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    for name in ("told_plain.py", "told_package/__init__.py", "told_package/inner.py", "told_spaces/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{RUNS}class Mine:\n    x = 7\n")
    return tmp_path


def ran(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.ran"))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("told_plain:Mine", "told_plain.py: Mine"),
        ("told_package:Mine", "told_package/__init__.py: Mine"),
        ("told_package.inner:Mine", "told_package/inner.py: Mine"),
        ("told_spaces.inner:Mine", "told_spaces/inner.py: Mine"),  # in a folder that is not a package
    ],
)
def test_custom_class_is_announced_once_before_its_code_runs(name: str, file: str, folder: Path) -> None:
    """The line names file, class and key; the packages around the class have not run either."""
    said: list[tuple[str, list[str]]] = []
    with telling(lambda line: said.append((line, ran(folder)))):
        own_class(name, "a.yaml", "model.network")
        own_class(name, "a.yaml", "model.network")
    assert said == [(f"own code: {file} (a.yaml: model.network) runs with your rights", [])]
    assert name.partition(":")[0].replace(".", "/") in (part.removesuffix("/__init__") for part in ran(folder))


@pytest.mark.parametrize("name", ["told_plain:Mine", "told_package.inner:Mine"])
@pytest.mark.parametrize("use", [own_class, code_hash])
def test_custom_class_is_refused_before_its_code_runs(name: str, use: object, folder: Path) -> None:
    """The error names file, class, option and remedy; the class may run again afterwards."""
    assert callable(use)
    file = f"{name.partition(':')[0].replace('.', '/')}.py: Mine"
    with telling(lambda line: None, is_refused=True), pytest.raises(InputError) as wrong:
        use(name, "a.yaml", "model.network")
    for word in ("a.yaml: model.network", name, file, "--no-own-code", f"{REFUSING}=1", "leave that out"):
        assert word in str(wrong.value)
    assert ran(folder) == []
    assert REFUSING not in os.environ
    use(name, "a.yaml", "model.network")


@pytest.mark.parametrize(("value", "is_refused"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_refuses_it_too(
    value: str, is_refused: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no flag reaches: environments of Gymnasium, and every process that a refusing one starts."""
    monkeypatch.setenv(REFUSING, value)
    if is_refused:
        with pytest.raises(InputError, match="refuses"):
            own_class("told_plain:Mine", "gym", "")
    else:
        own_class("told_plain:Mine", "gym", "")
    assert bool(ran(folder)) != is_refused


def test_processes_that_are_started_refuse_it(folder: Path) -> None:
    code = "from kit.plugins import own_class; own_class('told_plain:Mine', 'worker', '')"
    with telling(lambda line: None, is_refused=True):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InputError: worker: 'told_plain:Mine' is custom code" in done.stderr
    assert ran(folder) == []


def test_code_hash_of_a_custom_class_is_computed_without_running_it(folder: Path) -> None:
    (folder / "told_plain.py").write_text("import no_such_module_anywhere\nraise SystemExit(3)\n")
    before = code_hash("told_plain:Mine", "a", "b")
    (folder / "told_plain.py").write_text("import no_such_module_anywhere\nraise SystemExit(4)\n")
    assert code_hash("told_plain:Mine", "a", "b") != before
    (folder / "told_plain.py").write_bytes(b"no Python \x00 at all")
    assert code_hash("told_plain:Mine", "a", "b") != before
    assert ran(folder) == []


def test_modules_that_import_each_other_have_an_end(folder: Path) -> None:
    (folder / "told_plain.py").write_text("import told_other\nfrom .... import nothing\n")
    (folder / "told_other.py").write_text("import told_plain\nx = 7\n")
    before = code_hash("told_plain:Mine", "a", "b")
    (folder / "told_other.py").write_text("import told_plain\nx = 8\n")
    assert code_hash("told_plain:Mine", "a", "b") != before


def test_installed_packages_are_no_part_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have versions; but a class of an installed package is known by its own package's code."""
    for name in ("installed_one/__init__.py", "installed_one/part.py", "installed_two.py"):
        path = folder / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 7\n")
    (folder / "site-packages" / "installed_one" / "__init__.py").write_text(
        "import installed_two\nfrom . import part\n"
    )
    sys.path.append(str(folder / "site-packages"))
    (folder / "told_plain.py").write_text("import installed_one, json, kit.plugins\n")

    def hashes() -> tuple[str, str]:
        return code_hash("told_plain:Mine", "a", "b"), code_hash("installed_one:Mine", "a", "b")

    before = hashes()
    (folder / "site-packages" / "installed_two.py").write_text("x = 8\n")
    assert hashes() == before
    (folder / "site-packages" / "installed_one" / "part.py").write_text("x = 8\n")
    assert [one == other for one, other in zip(hashes(), before, strict=True)] == [True, False]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "no_such_module_here:Mine",
            "'no_such_module_here:Mine' could not be made: ModuleNotFoundError: No module named",
        ),
        ("told_plain.inner:Mine", "could not be made: ModuleNotFoundError: No module named 'told_plain.inner'"),
        ("told_plain:Other", "could not be made: AttributeError: "),
    ],
)
def test_missing_custom_class_is_refused_in_one_line(name: str, words: str, folder: Path) -> None:
    with pytest.raises(InputError) as wrong:
        own_class(name, "a.yaml", "model.network")
    assert words in str(wrong.value)
    assert "\n" not in str(wrong.value)
