"""A server's worker: the process that runs its scheduler, its lanes and its sensor, and its device's instances."""
