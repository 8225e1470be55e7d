"""A device as the engine sees it: its worker, its agent, and what these say to each other."""
