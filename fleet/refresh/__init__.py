"""Keeps models fresh: a challenger is trained in its own process and meets the champion."""
