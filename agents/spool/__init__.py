"""Finished records until the coordinator has acknowledged them."""
