"""Ways to give a new device a head from few measured candidates, and what such a head is worth."""
