"""What runs next to a device: it proposes, builds and times programs, and rates each number."""
