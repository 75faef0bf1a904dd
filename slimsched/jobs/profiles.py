"""How fast a GPU is by its profile."""

from __future__ import annotations

from pathlib import Path

from scenarios.files.reading import read_profile
from sim.profile import Profile


def profile_images_s(named: Path, source: str, key: str) -> float:
    """Images a second by a profile: its file, or the name of one that ships; raises `InputError` for none."""
    return images_s(read_profile(named, source, key))


def images_s(profile: Profile) -> float:
    """Of the whole network at full width, at the batch size where that is most."""
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
