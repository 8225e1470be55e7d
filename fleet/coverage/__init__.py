"""Which candidates families know, and which of them each device has measured."""
