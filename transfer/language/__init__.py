"""Dialects of schedules, each read into the same sequences of primitives."""
