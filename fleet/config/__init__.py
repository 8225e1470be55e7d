"""Settings and device files: what people write, strictly read."""
