"""Simulated runs, beside each other, and their folders; capacity and the bound that no router beats."""
