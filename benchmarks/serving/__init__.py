"""What `slimsched serve` costs and withstands: its goals as ratios in one run, and the same network behind rivals."""
