"""Whole networks: how they are named, read from files, compiled, and timed with other ways to run them."""
