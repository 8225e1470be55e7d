"""Comparisons on held-out rows: rankers, strategies, source devices."""
