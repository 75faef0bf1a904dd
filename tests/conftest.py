"""Hypothesis draws anew on every run here, and the same every time in CI: a change is judged by itself, not by luck."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
