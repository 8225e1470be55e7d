"""The Delta table itself: schema, commits, files, ids, sums."""
