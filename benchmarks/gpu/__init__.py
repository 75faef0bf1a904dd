"""`make gpu`: what only a GPU can tell, in one command of nine minutes; evidence that outlives a kill."""

MARK = "finding: "  # what a check's process says last begins with it
