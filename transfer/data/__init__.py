"""Records joined by candidate: labels, divisions, batches, and how scores are judged."""
