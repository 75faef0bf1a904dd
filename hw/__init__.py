"""The real world: torch executors that are driven by the decision cores of `policies`."""
