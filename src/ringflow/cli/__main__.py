"""`python -m ringflow.cli`: the command without its script."""

import sys

from ringflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
