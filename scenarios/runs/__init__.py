"""Simulated runs, alone and side by side, and their folders; capacity and the bound that no router beats."""
