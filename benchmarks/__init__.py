"""Benchmarks: `python -m benchmarks.NAME --json` prints one JSON object."""

import sys

from benchmarks.extras import refuse_if_incomplete

# The one place that runs before a benchmark imports what it may lack.
refuse_if_incomplete(sys.orig_argv)
