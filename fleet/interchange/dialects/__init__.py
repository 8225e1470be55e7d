"""Dialects of logs, a module each; every module here is in use, by what it declares in `FORMATS`."""
