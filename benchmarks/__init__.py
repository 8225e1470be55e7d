"""Benchmarks: `python -m benchmarks.NAME --json` prints one JSON object."""
