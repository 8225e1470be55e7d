"""What is learned: primitives, features, FleetTLP, adaptation to new devices, evaluation."""
