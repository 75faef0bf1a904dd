"""Generated traces of a given load, sizes and tails. The same seed gives the same trace."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import gamma, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jobs.job_traces import JobTrace
from kit.errors import InputError, nearest
from kit.random_streams import mmpp, poisson, stream

Numbers = NDArray[np.float64]
DURATIONS: Final[Mapping[str, Mapping[str, float]]] = {
    "exponential": {"mean_s": 3600.0},
    "weibull": {"mean_s": 3600.0, "shape": 0.5},
    "lognormal": {"mean_s": 3600.0, "cv2": 10.0},
    "hyperexponential": {"mean_s": 3600.0, "cv2": 10.0},
}
_ALLOWED: Final = {"hyperexponential.cv2": (1.0, np.inf), "weibull.shape": (0.1, 100.0)}
ARRIVALS: Final[Mapping[str, Mapping[str, float]]] = {
    "poisson": {},
    "mmpp": {"burst_factor": 4.0, "burst_share": 0.1, "burst_s": 7200.0},
}
SIZES: Final[Mapping[int, float]] = {1: 0.70, 2: 0.10, 4: 0.10, 8: 0.08, 16: 0.02}
QUANTUM_S: Final = 900.0  # requested times are multiples of it
MAX_OVER: Final = 10.0  # times the run time that is requested, at most
SHORTEST_S: Final = 1.0
LONGEST_YEARS: Final = 50


@dataclass(frozen=True, slots=True)
class Law:
    """A named distribution, with all of its parameters."""

    name: str
    parameters: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Parameters of a generated trace.

    Attributes:
        gpus: GPUs of the cluster to which `load` refers.
        sizes: weights of jobs by their GPUs.
        users, vcs: their numbers; the k-th has a share of the jobs proportional to 1/k, and a user belongs to one VC.
        alike: share of the jobs that run as long as their user's last one of that size, from which a history can learn.
    """

    jobs: int
    gpus: int
    load: float
    durations: Law
    arrivals: Law
    sizes: Mapping[int, float]
    users: int = 20
    vcs: int = 4
    alike: float = 0.5
    seed: int = 0

    @property
    def rate_job_s(self) -> float:
        """Jobs a second that result in the load."""
        mean_gpus = sum(gpus * weight for gpus, weight in self.sizes.items()) / sum(self.sizes.values())
        return self.load * self.gpus / (mean_gpus * self.durations.parameters["mean_s"])


def law(text: str, defaults: Mapping[str, Mapping[str, float]], flag: str) -> Law:
    """Parse a distribution such as `lognormal:mean_s=3600,cv2=41`; missing parameters get defaults.

    Raises:
        InputError: no such law or parameter, or a value that it can't have.
    """
    name, _, rest = text.partition(":")
    if name not in defaults:
        raise InputError(flag, "", f"unknown {name!r:.80}; {nearest(name, defaults)}")
    parameters = dict(defaults[name])
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in parameters:
            allowed = nearest(key, parameters) if parameters else "it has no parameters"
            raise InputError(flag, name, f"unknown parameter {key!r:.80}; {allowed}")
        parameters[key] = _positive(value, flag, f"{name}.{key}")
        low, high = _ALLOWED.get(f"{name}.{key}", (0.0, np.inf))
        if not low <= parameters[key] <= high:
            must_be = f"from {low:g} to {high:g}" if high < np.inf else f"at least {low:g}; lognormal can have less"
            raise InputError(flag, f"{name}.{key}", f"{parameters[key]:g}: must be {must_be}")
    if name == "mmpp" and parameters["burst_share"] * max(parameters["burst_factor"], 1) >= 1:
        problem = f"burst_factor {parameters['burst_factor']:g} x burst_share {parameters['burst_share']:g}"
        raise InputError(flag, name, f"{problem}: must be below 1, for the calm rest has jobs, too")
    return Law(name, parameters)


def sizes(text: str, flag: str) -> dict[int, float]:
    """Parse weights by GPU count such as `1:0.7,8:0.3`; raises `InputError` if it can't."""
    weights: dict[int, float] = {}
    for part in text.split(","):
        gpus, _, weight = part.partition(":")
        if not (gpus.isascii() and gpus.isdigit() and int(gpus[:9]) >= 1 and len(gpus) <= 6):
            raise InputError(flag, "", f"{gpus!r:.40} is not a number of GPUs; expected pairs such as 1:0.7,8:0.3")
        if int(gpus) in weights:
            raise InputError(flag, gpus, "is given twice; give each size once")
        weights[int(gpus)] = _positive(weight, flag, gpus)
    return weights


def draw(drawing: Drawing) -> JobTrace:
    """Draw the trace; raises `InputError` if it would last for centuries."""
    count = drawing.jobs
    if (years := count / drawing.rate_job_s / 31_557_600) > LONGEST_YEARS:
        problem = f"{drawing.load:g} of {drawing.gpus:,} GPUs: {count:,} such jobs take {years:,.0f} years"
        raise InputError(
            "--load", "", f"{problem}; expected at most {LONGEST_YEARS}: ask for fewer jobs, or for more load"
        )
    submit_s, seed = _arrivals(drawing), drawing.seed
    weights = np.array(list(drawing.sizes.values()))
    gpus = np.array(list(drawing.sizes))[_drawn(weights, count, seed, "sizes")]
    user = _drawn(1 / np.arange(1, drawing.users + 1), count, seed, "users")
    vc_of = _drawn(1 / np.arange(1, drawing.vcs + 1), drawing.users, seed, "vcs")
    run_s = _repeated(_durations(drawing), user, gpus, drawing)
    document = {**asdict(drawing), "sizes": {str(gpus): weight for gpus, weight in drawing.sizes.items()}}
    over = np.exp(stream(seed, "jobs:requests").uniform(0, log(MAX_OVER), count))
    return JobTrace.of(
        submit_s - submit_s[0],
        run_s,
        gpus,
        job_id=_named("j", np.arange(count)),
        user=_named("u", user),
        vc=_named("vc", vc_of[user]),
        requested_s=np.ceil(run_s * over / QUANTUM_S) * QUANTUM_S,
        status=["completed"] * count,
        provenance={"format": "drawn", "file": "", "start": None, "drawing": document},
    )


def _arrivals(drawing: Drawing) -> Numbers:
    """Draw times of the first jobs, in whole milliseconds, doubling the time span until they suffice."""
    rate, of = drawing.rate_job_s, drawing.arrivals.parameters
    horizon_s = 1.2 * drawing.jobs / rate + 10 / rate
    while True:
        rng = stream(drawing.seed, "jobs:arrivals")
        if drawing.arrivals.name == "poisson":
            times = poisson(rate, horizon_s, rng)
        else:
            times = mmpp(rate, of["burst_factor"], of["burst_share"], of["burst_s"], horizon_s, rng)
        if len(times) >= drawing.jobs:
            return np.round(np.sort(np.asarray(times, np.float64))[: drawing.jobs] / 1e6) / 1e3
        horizon_s *= 2


def _durations(drawing: Drawing) -> Numbers:
    """Draw independent run times, in whole milliseconds, of a second at least."""
    rng = stream(drawing.seed, "jobs:durations")
    of = drawing.durations.parameters
    count = drawing.jobs
    mean_s = of["mean_s"]
    match drawing.durations.name:
        case "exponential":
            times = rng.exponential(mean_s, count)
        case "weibull":
            times = mean_s / gamma(1 + 1 / of["shape"]) * rng.weibull(of["shape"], count)
        case "lognormal":
            sigma = sqrt(log(1 + of["cv2"]))
            times = rng.lognormal(log(mean_s) - sigma**2 / 2, sigma, count)
        case _:  # hyperexponential: two phases with balanced means, each has half of the work (Allen 1990, 5.2)
            first = (1 + sqrt((of["cv2"] - 1) / (of["cv2"] + 1))) / 2
            shares = np.where(rng.random(count) < first, first, 1 - first)
            times = rng.exponential(1.0, count) * mean_s / (2 * shares)
    return np.maximum(np.round(times, 3), SHORTEST_S)


def _repeated(run_s: Numbers, user: NDArray[np.int64], gpus: NDArray[np.int64], drawing: Drawing) -> Numbers:
    """Let some jobs run as long as their user's last one of that size; the marginal distribution is unchanged."""
    is_again = stream(drawing.seed, "jobs:alike").random(drawing.jobs) < drawing.alike
    last: dict[tuple[int, int], float] = {}
    times = run_s.copy()
    for job, key in enumerate(zip(user.tolist(), gpus.tolist(), strict=True)):
        if is_again[job] and key in last:
            times[job] = last[key]
        last[key] = times[job]
    return times


def _drawn(weights: Numbers, count: int, seed: int, name: str) -> NDArray[np.int64]:
    return stream(seed, f"jobs:{name}").choice(len(weights), count, p=weights / weights.sum())


def _named(prefix: str, numbers: NDArray[np.int64]) -> NDArray[np.object_]:
    return np.array([f"{prefix}{number}" for number in numbers.tolist()], object)


def _positive(text: str, flag: str, key: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= 1e12:
            return float(text)
    raise InputError(flag, key, f"{text!r:.40}: must be a number above 0")
