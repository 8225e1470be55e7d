"""What is behind `fleet up`: the engine as a separate process."""
