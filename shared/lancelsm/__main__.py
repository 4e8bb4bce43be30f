"""`python -m lancelsm`: the command line where the directory of its script is not on the PATH."""

import sys

from lancelsm.cli import main

if __name__ == "__main__":
    sys.exit(main())
