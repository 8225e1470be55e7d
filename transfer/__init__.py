"""What is learned: primitives, features, MTL-TLP, adaptation to new devices, evaluation."""
