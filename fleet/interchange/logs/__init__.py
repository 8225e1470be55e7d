"""Lines of other tools' logs, read one by one: untrusted, bounded, every line accounted for."""
