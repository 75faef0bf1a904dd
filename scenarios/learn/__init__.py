"""How routers are trained and tuned. It needs the simulator alone."""
