"""A cluster's log as a trace of jobs: nine formats, read block by block and in columns."""
