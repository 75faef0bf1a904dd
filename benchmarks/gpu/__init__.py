"""`make gpu`: what only a GPU can tell, in one command of nine minutes; evidence that outlives a kill."""

MARK = "finding: "  # a line of a check's process that has it goes on with JSON: numbers, or the verdict
