"""FleetTLP (a shared backbone, one head a device, trees), the published MTL-TLP, and their folder on the disk."""
