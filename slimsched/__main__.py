"""`python -m slimsched`: the command line."""

import sys

from slimsched.cli import main

if __name__ == "__main__":
    sys.exit(main())
