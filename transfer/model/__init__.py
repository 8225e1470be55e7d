"""FleetTLP: a shared backbone, one head a device, trees beside it, and the folder they are kept in."""
