"""What this host is and does: processors, GPUs, locks that all its users share, processes."""
