"""Other people's ways to rank candidates, behind one interface: what our model is compared with."""
