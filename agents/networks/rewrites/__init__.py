"""How a network is rewritten before it becomes programs: attention, convolutions, transposes and reshapes."""
