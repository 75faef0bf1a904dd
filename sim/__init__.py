"""The simulation: a SimPy model of the cluster that drives the decision cores of `policies`."""
