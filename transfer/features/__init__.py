"""Schedules, workloads and devices as numbers."""
