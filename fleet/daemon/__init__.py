"""What is behind `fleet up`: the engine as a process of its own."""
