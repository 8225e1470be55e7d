"""FleetTLP (shared backbone, a head for each device, trees), the published MTL-TLP, and their folder."""
