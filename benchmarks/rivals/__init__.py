"""Other people's ways to rank candidates: what our model is compared with."""
