"""What people look at: the fleet, a device, workloads, candidates and alerts, as plain values."""
