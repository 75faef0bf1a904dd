"""A simulated cluster that runs training jobs: SimPy drives the decision core of `jobs.policies`."""
