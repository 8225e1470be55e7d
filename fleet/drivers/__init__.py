"""How a driver reaches the coordinator: its channel, its questions, the store that an import writes to."""
