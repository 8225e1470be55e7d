"""A head for new hardware from a few measured candidates."""
