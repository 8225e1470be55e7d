"""Whole networks: how they are named, read from files, compiled, and timed beside other ways to run them."""
