"""The command line: verbs in, one clear line and an exit code out."""
