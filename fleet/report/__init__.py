"""The main job and its report."""
