"""How requests come to the coordinator, and how far they have come."""
