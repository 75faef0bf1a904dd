"""Calibration: measure devices through `hw` and fit the simulator's own formulas to the measurements."""

from calibrate.calibration_log import CalibrationRequest
from calibrate.datasheet import GPUS, DataSheet, find_gpu, synthesize
from calibrate.fresh_points import CheckedMetric
from calibrate.measurement_plan import ModelCosts, costs_of
from calibrate.plan_execution import CalibrationProgress
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
