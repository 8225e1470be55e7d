"""Where a program may do harm: forked worker processes, confined, and their pool."""
