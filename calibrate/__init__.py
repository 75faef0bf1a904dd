"""Measures devices through `hw` and fits the simulator's own formulas to what it saw."""

from calibrate.calibration import Calibration
from calibrate.check import CheckedMetric
from calibrate.costs import ModelCosts, costs_of
from calibrate.datasheet import GPUS, Sheet, find_gpu, synthesize
from calibrate.measure import Progress
from calibrate.session import Listener, calibrate, check_profile, model_costs

__all__ = [
    "GPUS",
    "Calibration",
    "CheckedMetric",
    "Listener",
    "ModelCosts",
    "Progress",
    "Sheet",
    "calibrate",
    "check_profile",
    "costs_of",
    "find_gpu",
    "model_costs",
    "synthesize",
]
