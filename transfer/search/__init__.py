"""A search in memory: candidates as decisions, their evolution, and what is learnt meanwhile."""
