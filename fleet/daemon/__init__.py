"""The shell around the state: it hears agents, makes durable what arrives, and obeys the state."""
