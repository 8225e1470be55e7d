"""The dataset: a Delta Lake table that is written durably and read without a lock."""
