"""What becomes of records that arrive: into the store, or set aside for people."""
