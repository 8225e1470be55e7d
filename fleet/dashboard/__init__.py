"""What people look at: the fleet, a device, comparisons, candidates and alerts, as plain values."""
