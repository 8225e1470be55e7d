"""Which candidates each device has measured, and which it has not."""
