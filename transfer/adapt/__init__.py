"""Ways to give a new device a head from few measured candidates."""
