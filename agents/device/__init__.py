"""A device as the engine sees it: its worker, its agent, and the messages between them."""
