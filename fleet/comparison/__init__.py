"""Two devices, two days of a device or two model versions side by side: what changed beyond the noise."""
