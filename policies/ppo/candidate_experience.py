"""Decisions of `ppo` as rollouts leave them: rows of numbers, and what they say by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from policies.compiled.record import INT, REAL, Record
from policies.rules.candidates import SERVER, SETTING, WIDTH

Reals = npt.NDArray[np.float64]

MASKED: Final = -1.0  # in place of how dear a candidate is: it is none


class CandidateRow(Record):
    """A decision: when, how many images were inside the cluster then, how many had been served and with what accuracy
    in all; its segment (from 0), the candidate drawn, how many images; whether its episode ended with it. The network's
    inputs follow, then how dear each candidate was (`policies.rules.candidates.reluctance`)."""

    time_ns = in_flight = completed = segment = chosen = images = ended = INT
    accuracy = REAL


HEAD: Final = CandidateRow.size


@dataclass(frozen=True, slots=True)
class CandidateExperience:
    """E clusters' T decisions each, one after the other.

    Attributes:
        rows: (E, T, R) float64.
        servers, widths: N and W.
    """

    rows: Reals
    servers: int
    widths: int

    def __len__(self) -> int:
        return int(self.rows.shape[0] * self.rows.shape[1])

    def whole(self, name: str) -> npt.NDArray[np.int64]:
        """(E, T) a whole number of each decision."""
        return self.rows.view(np.int64)[..., CandidateRow.offsets[name]]

    @property
    def accuracy(self) -> Reals:
        """(E, T) the sum of what was served."""
        return self.rows[..., CandidateRow.offsets["accuracy"]]

    @property
    def setting(self) -> Reals:
        """(E, T, SETTING)."""
        return self.rows[..., HEAD : HEAD + SETTING]

    @property
    def server(self) -> Reals:
        """(E, T, N, SERVER)."""
        first = HEAD + SETTING
        part = self.rows[..., first : first + self.servers * SERVER]
        return part.reshape(*part.shape[:-1], self.servers, SERVER)

    @property
    def width(self) -> Reals:
        """(E, T, N, W, WIDTH)."""
        first = HEAD + SETTING + self.servers * SERVER
        part = self.rows[..., first : first + self.servers * self.widths * WIDTH]
        return part.reshape(*part.shape[:-1], self.servers, self.widths, WIDTH)

    @property
    def reluctance(self) -> Reals:
        """(E, T, N W); `MASKED` where there is no such candidate."""
        return self.rows[..., -self.servers * self.widths :]
