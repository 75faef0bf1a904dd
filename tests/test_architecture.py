"""What docs/architecture.md promises of the source, where import-linter can't tell."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("kit", "policies", "sim", "hw", "calibrate", "scenarios", "jobs", "slimsched")


@cache
def sources() -> dict[str, ast.Module]:
    """Each module of the packages, parsed; not yet while tests are collected."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


TOUCH_FILES = {
    "kit/files.py",  # whole or not at all
    "kit/plugins.py",  # the source of a user's own router
    "kit/jit_cache.py",  # the store of compiled code
    "kit/checkpoint.py",  # weights
    "kit/documents.py",  # text and JSON, rows that were computed
    "kit/strict.py",  # paths
    "kit/parallel.py",  # processes
}
FILE_MODULES = {"os", "io", "shutil", "tempfile", "safetensors", "safetensors.numpy"}
FILE_CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink", "touch", "rename"}


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _called(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield node.func.id if isinstance(node.func, ast.Name) else node.func.attr


def test_which_modules_of_policies_and_sim_touch_files() -> None:
    found = {
        name
        for name, tree in sources().items()
        if name.startswith(("kit/", "policies/", "sim/"))
        and (FILE_MODULES.intersection(_imports(tree)) or FILE_CALLS.intersection(_called(tree)))
    }
    assert found == TOUCH_FILES


def test_every_file_is_put_in_its_place_by_one_function() -> None:
    """A file that takes another's place, or leaves its own: `kit.files` alone knows how."""
    found = [
        name
        for name, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("replace", "rename")
        and len(node.args) == 1
        and not node.keywords
    ]
    assert set(found) == {"kit/files.py"}


OF_PYTHON = {"_exit", "_asdict", "_replace", "_fields"}  # public in spite of their names
OF_TORCH = {"_C", "_scaled_dot_product_flash_attention_for_cpu", "_to_copy"}  # what torch has no other name for


def _of_others(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Private parts that are looked at, of anything but the object itself; a module's own classes may, among them."""
    private = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    ]
    own = {node.attr for node in private if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}
    yield from (node for node in private if node.attr not in own | OF_PYTHON | OF_TORCH)


def test_no_module_looks_into_anothers_private_parts() -> None:
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node)}" for name, tree in sources().items() for node in _of_others(tree)
    ]
    assert found == []


def test_modules_import_no_private_names() -> None:
    found = [
        f"{name}: {node.module}.{alias.name}"
        for name, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert found == []


MAX_PARAMETERS = 8
KERNELS = ("sim/compiled/", "policies/compiled/", "jobs/policies/preemption.py", "policies/ppo/kernels.py")


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([argument for argument in given if argument.arg not in ("self", "cls")])


def test_long_parameter_lists_are_nouns() -> None:
    """Nine and more are a dataclass; but for compiled kernels, which take arrays, and verbs, which take flags."""
    found = [
        f"{name}:{node.lineno}: {node.name} takes {_parameters(node)}"
        for name, tree in sources().items()
        if not name.startswith(KERNELS)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _parameters(node) > MAX_PARAMETERS
        and not any(isinstance(each, ast.Name) and each.id == "verb" for each in node.decorator_list)
    ]
    assert found == []
