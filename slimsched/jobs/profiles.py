"""How fast a GPU is by its profile."""

from __future__ import annotations

from pathlib import Path

from scenarios.files.reading import read_profile
from sim.profile import Profile


def profile_images_s(named: Path, source: str, key: str) -> float:
    """Return images a second by a profile: its file, or a bundled one's name; raises `InputError` otherwise."""
    return images_s(read_profile(named, source, key))


def images_s(profile: Profile) -> float:
    """Return images a second of the whole network at full width, at the best batch size."""
    widest = max(profile.model.widths)
    curves = [
        curve
        for curve in profile.latency
        if curve.width == widest and curve.previous_width == max(profile.model.previous_widths(curve.segment, widest))
    ]
    common = set.intersection(*(set(curve.batches) for curve in curves))
    return max(
        batch / sum(dict(zip(curve.batches, curve.mean_s, strict=True))[batch] for curve in curves) for batch in common
    )
