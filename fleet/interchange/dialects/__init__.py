"""Dialects of logs, a module each; one that lies here is in use, by what it declares in `FORMATS`."""
