"""The records table: its columns, its files, and its versions as readers see them."""
