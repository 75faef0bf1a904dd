"""Which training job starts when, and on which GPUs: decision cores for a cluster's queue."""
