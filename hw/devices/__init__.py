"""Devices of torch: instances, an agent's stored activations, and the parts that only a GPU has."""
