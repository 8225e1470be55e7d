"""The state of a fleet: events in, instructions out. Pure: no clock, no Ray, no disk, no random."""
