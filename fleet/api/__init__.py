"""The small HTTP API of a running daemon."""
