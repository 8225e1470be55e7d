"""What happens beside a device: propose, build, time, and say how far a number can be trusted."""
