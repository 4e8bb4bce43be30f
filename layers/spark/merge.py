"""Entry point for spark-submit. All other code is in the archive on PYTHONPATH."""

import sys

from lancelsm.stack.merge_job import main

sys.exit(main(sys.argv[1:]))
