"""Measurements in and out: other tools' logs become records, and records become other tools' files."""
