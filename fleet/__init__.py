"""Decides and keeps: command line, coordinator, store, models, reports."""
