"""Devices of torch: instances, what an agent keeps between batches, and what only a GPU has."""
