"""`make gpu`: what only a GPU can tell, in one command of nine minutes; evidence that outlives a kill."""
