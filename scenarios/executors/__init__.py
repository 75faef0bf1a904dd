"""Real executors: the devices that servers stand for, calibration, what must fit, runs on executors, validation."""
