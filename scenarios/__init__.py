"""Composes everything: scenario files, runs, reports and the command line."""
