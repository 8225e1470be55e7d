"""Collects records once: what to measure, on which devices, how far it is."""
