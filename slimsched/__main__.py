"""`python -m slimsched`: the command line."""

import sys

from scenarios.cli import main

if __name__ == "__main__":
    sys.exit(main())
