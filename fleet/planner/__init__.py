"""Which candidates are measured next: for devices with room in the background, and for a collection."""
