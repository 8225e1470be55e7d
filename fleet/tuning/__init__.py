"""Searches fast programs on one device: heads choose, agents measure."""
