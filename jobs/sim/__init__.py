"""A simulated cluster that runs training jobs: an agenda drives the decision core of `jobs.policies`."""
