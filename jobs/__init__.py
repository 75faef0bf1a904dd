"""Training jobs of a cluster: its log as a trace, what a trace holds, and traces that are drawn."""
