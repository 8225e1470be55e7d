"""Which candidates each device has measured: the (candidate, device) matrix."""
