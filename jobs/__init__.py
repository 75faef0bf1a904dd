"""Training jobs of a cluster: logs as traces, summaries of traces, and generated traces."""
