"""What happened in the fleet, durably: events on the disk, and the state that follows from them."""
