"""What may be asked of a fleet: one module per kind of request, and the desk at which they wait."""
