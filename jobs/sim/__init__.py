"""Simulation of training jobs on a cluster: an agenda drives the decision core of `jobs.policies`."""
