"""Calibration: measure devices through `hw` and fit the simulator's own formulas to the measurements."""

from calibrate.calibration import CalibrationRequest
from calibrate.check import CheckedMetric
from calibrate.costs import ModelCosts, costs_of
from calibrate.datasheet import GPUS, DataSheet, find_gpu, synthesize
from calibrate.measure import CalibrationProgress
from calibrate.session import CalibrationObserver, calibrate, check_profile, model_costs

__all__ = [
    "GPUS",
    "CalibrationObserver",
    "CalibrationProgress",
    "CalibrationRequest",
    "CheckedMetric",
    "DataSheet",
    "ModelCosts",
    "calibrate",
    "check_profile",
    "costs_of",
    "find_gpu",
    "model_costs",
    "synthesize",
]
