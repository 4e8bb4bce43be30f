"""The entry point that spark-submit takes; the rest is in the archive on PYTHONPATH."""

import sys

from lancelsm.stack.merge_job import main

sys.exit(main(sys.argv[1:]))
