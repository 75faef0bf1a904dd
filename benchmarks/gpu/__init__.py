"""`make gpu`: checks that need a GPU, in one command of nine minutes; its evidence survives a kill."""

MARK = "finding: "  # prefix of a check's output lines with JSON: numbers, or the verdict
