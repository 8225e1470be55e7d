"""The training of the model."""
