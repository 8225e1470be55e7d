"""The choice of a strategy for a new device, and what its head is worth."""
