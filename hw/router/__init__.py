"""The router's process: one loop that drives the router's core, with the servers behind their ports, also on a Ray
cluster."""
