"""Our executors beside Ray Serve and LitServe, one network on one core: `python -m benchmarks.speed.peers`."""
