"""The page of the keys of a scenario of training jobs, and of a policy's file, made from their schemas.

`python -m slimsched.jobs.keys_page > docs/jobs-scenario-keys.md` writes it anew.
"""

from __future__ import annotations

import sys
from typing import Final

from jobs.spec import JobsScenario, PolicyFile
from scenarios.files.keys_page import keys_markdown

_HEAD: Final = """# The keys of a scenario of training jobs

Made from `jobs/spec.py` by `python -m slimsched.jobs.keys_page`: edit descriptions there.

`slimsched jobs init TRACE --nodes 64x8` writes a first one. Unknown keys are refused. Paths are relative to the file's
own folder. Times are seconds, as a number or as `45s`, `5m`, `1h`, `2d`. `null` stands for what the description says.
"""
_POLICY_HEAD: Final = """# The keys of a policy's file

`NAME.jobpolicy.yaml`, for policies that no name means: other numbers of preemption, other combinations.
"""


def jobs_keys_markdown() -> str:
    """Both tables of keys."""
    return f"{keys_markdown(JobsScenario, _HEAD)}\n{keys_markdown(PolicyFile, _POLICY_HEAD)}"


if __name__ == "__main__":
    sys.stdout.write(jobs_keys_markdown())
