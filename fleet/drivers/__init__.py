"""Drivers of requests: each decides what the engine measures for its collection, onboarding or search."""
