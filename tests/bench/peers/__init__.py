"""Our executors beside Ray Serve and LitServe, one network on one core: `python -m tests.bench.peers`."""
