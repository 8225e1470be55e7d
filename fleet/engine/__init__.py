"""The coordinator: hears agents, makes durable what arrives, and obeys the pure state of `fleet.core`."""
