"""Whole stores: verified, backed up, restored."""
