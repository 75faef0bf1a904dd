"""Builds the null CUDA for the installed torch, once for each torch and each state of these sources."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from kit.jit_cache import cache_folder

SOURCE = Path(__file__).with_name("nullcuda.cpp")
LIBRARY = "libcuda.so.1"  # torch's libraries ask for the driver by this name; the runtime's symbols are in it, too
NVML = "libnvidia-ml.so.1"  # NVIDIA's Python binding asks for the management library by this one
CUDA_LIBRARIES = ("libtorch_cuda", "libc10_cuda", "libtorch_python", "libtorch_cuda_linalg", "libcaffe2_nvrtc")
STUBBED = re.compile(r"(__)?cuda[A-Z_]|cublas|cudnn|cu[A-Z]")


@cache
def missing() -> str:
    """Why the null CUDA can't be built here; empty where it can."""
    if not sys.platform.startswith("linux") or not shutil.which("g++") or not shutil.which("nm"):
        return "g++ and nm are needed to build the null CUDA"
    if not (_torch() / "lib" / "libtorch_cuda.so").exists():
        return f"torch {version('torch')} is a CPU build: it has no CUDA code to run"
    if absent := [name for folder, name in _headers() if not (folder / name).exists()]:
        return f"the wheels here have no {', '.join(absent)}"
    return ""


def build() -> Path:
    """The folder of the library; a process that comes while another one builds waits for it."""
    key = hashlib.sha256(SOURCE.read_bytes() + Path(__file__).read_bytes() + version("torch").encode()).hexdigest()[:16]
    folder = (cache_folder() or Path(tempfile.gettempdir())) / f"nullcuda-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as made:
                _compile(Path(made))
                Path(made).rename(folder)
                Path(made).mkdir()  # for its context to remove
    return folder


def _compile(folder: Path) -> None:
    stubs = folder / "stubs.cpp"
    stubs.write_text("#include <cstdlib>\n" + "".join(map(_stub, sorted(_wanted() - _written()))))
    include = [f"-I{path}" for path, _ in _headers()]
    flags = ["-O1", "-shared", "-fPIC", "-std=c++17", "-w", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run(["g++", *flags, *include, SOURCE, stubs, "-o", folder / LIBRARY], check=True)
    (folder / NVML).symlink_to(LIBRARY)


def _torch() -> Path:
    found = find_spec("torch")
    assert found is not None, "it is a dependency"
    assert found.origin is not None, "it is a package"
    return Path(found.origin).parent


def _headers() -> list[tuple[Path, str]]:
    """Where NVIDIA's headers are, and one of each folder; Triton's wheel has those that nvcc would bring."""
    site = _torch().parent
    return [
        (site / "nvidia/cu13/include", "driver_types.h"),
        (site / "nvidia/cudnn/include", "cudnn_version.h"),
        (site / "triton/backends/nvidia/include", "crt/host_defines.h"),
    ]


def _wanted() -> set[str]:
    """What torch's libraries need of CUDA's."""
    files = [_torch() / "lib" / f"{name}.so" for name in CUDA_LIBRARIES]
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", *(file for file in files if file.exists())],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = {line.split()[-1].partition("@")[0] for line in symbols.splitlines() if " U " in line}
    return {name for name in names if STUBBED.match(name)} | {"cuInit"}


def _written() -> set[str]:
    return set(re.findall(r"^API .*?(\w+)\(", SOURCE.read_text(), re.MULTILINE))


def _stub(name: str) -> str:
    """Success, and nothing else; what makes a thing gives back an empty one."""
    if "Create" in name:
        return f'extern "C" int {name}(void** out, ...) {{ *out = std::calloc(1, 64); return 0; }}\n'
    return f'extern "C" int {name}(...) {{ return 0; }}\n'
