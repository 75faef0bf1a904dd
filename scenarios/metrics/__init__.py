"""What a run's numbers are and how they compare: results, statistics, fidelity; what each means is in `catalogue`."""
