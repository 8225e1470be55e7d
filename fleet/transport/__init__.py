"""How agents are reached: in this process, or as Ray actors on this host and others."""
