"""From "this device has room" to jobs: which candidates are measured next."""
