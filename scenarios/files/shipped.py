"""What ships with the project: scenarios, profiles, networks and accuracies by name.

All of it lies inside the packages, so that an installed wheel has it, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kit.errors import InputError, nearest
from kit.files import lies_there

SHIPPED: Final = Path(__file__).parents[1] / "data"
SHIPPED_PROFILES: Final = SHIPPED / "profiles"
SHIPPED_SCENARIOS: Final = SHIPPED.parent  # with those of these folders below it
FOLDERS: Final = ("live", "scale")
SHIPPED_HOST: Final = SHIPPED / "host.yaml"  # what serving cost the host that datasheet profiles name
CALIBRATED: Final = Path("profiles")  # where `slimsched calibrate` writes by default


def profile_file(named: Path | str, source: str | None = None, key: str = "") -> Path:
    """Return the file of a profile; a bare word that is not a file is the name of a bundled one.

    Raises:
        InputError: a bare word that no shipped profile has.
    """
    path = Path(named)
    if not is_shipped_name(str(path)) or path.exists():
        return path
    shipped = {file.stem: file for file in SHIPPED_PROFILES.glob("*.yaml")}
    if path.name.lower() not in shipped:
        calibrated = CALIBRATED / f"{path.name}.yaml"
        hint = f"did you mean {calibrated}? " if calibrated.is_file() else ""
        known = nearest(path.name.lower(), shipped, "those that ship are", same_numbers=True)
        remedy = "for a GPU of your own: `slimsched profile synth sheet.yaml` (docs/profiles.md)"
        problem = f"no such profile; {hint}{known}; {remedy}"
        raise InputError(source or str(path), key, f"{path}: {problem}" if source else problem)
    return shipped[path.name.lower()]


def accuracy_file(named: str, folder: Path = Path(), source: str = "accuracy", key: str = "") -> str:
    """Return a file of accuracies as a scenario in this folder names it; a word that is not a file names a bundled one.

    Raises:
        InputError: a bare word that no shipped network has.
    """
    return _shipped_model(named, folder, ".accuracy.json", source, key)


def weights_file(named: str, folder: Path = Path(), source: str = "--model", key: str = "") -> str:
    """Return the file of a trained network in the same way; a flag may name it, too."""
    return _shipped_model(named, folder, ".safetensors", source, key)


def _shipped_model(named: str, folder: Path, ending: str, source: str, key: str) -> str:
    if not is_shipped_name(named) or lies_there(folder / named):
        return named
    shipped = {file.name.removesuffix(ending): file for file in (SHIPPED / "models").glob(f"*{ending}")}
    if named not in shipped:
        known = nearest(named, shipped, "those that ship are")
        raise InputError(source, key, f"{named}: no such file, and no network of this name ships; {known}")
    return str(shipped[named])


def clusters_file(named: Path) -> Path:
    """Return the file that clusters are drawn from; `clusters` is the bundled one."""
    shipped = SHIPPED / "clusters.yaml"
    return shipped if str(named) == shipped.stem and not named.exists() else named


def scenario_file(named: Path) -> Path:
    """Return a scenario's file; a word that is not a file names a bundled one: `quickstart`, `live/bursts`.

    One in a folder has the name in its file, too: `live-bursts`.

    Raises:
        InputError: a bare word that no shipped scenario has, or a shipped one's name with an ending.
    """
    if lies_there(named) or named.is_absolute() or ".." in named.parts:
        return named
    shipped = SHIPPED_SCENARIOS / named.with_suffix(".yaml")
    is_shipped = shipped.is_file() and not shipped.is_relative_to(SHIPPED)
    if named.suffix:
        if is_shipped and named.suffix == ".yaml":
            problem = "no such file here; the one that ships is named without its ending"
            raise InputError("scenario", "", f"{named}: {problem}: {named.with_suffix('')}")
        return named
    if is_shipped:
        return shipped
    if not is_shipped_name(str(named)):
        return named
    below = {f"{folder}-{file.stem}": file for folder in FOLDERS for file in SHIPPED_SCENARIOS.glob(f"{folder}/*.yaml")}
    if str(named) in below:
        return below[str(named)]
    names = [*(file.stem for file in SHIPPED_SCENARIOS.glob("*.yaml")), *below]
    remedy = "a file of your own ends in .yaml; `slimsched init` writes a first one"
    problem = f"no such file, and no shipped scenario has this name; {nearest(named.name, names)}; {remedy}"
    raise InputError("scenario", "", f"{named}: {problem}")


def is_shipped_name(text: str) -> bool:
    """Return whether it is a bare word, without folder and ending: no file of the user's, but a profile's name."""
    return Path(text).name == text and not Path(text).suffix
