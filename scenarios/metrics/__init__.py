"""What is measured of a run, what it is called, and how runs are compared. Numbers only."""
