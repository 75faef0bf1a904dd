"""`slimsched run`: its stages, what each was made from, and the work of each."""
