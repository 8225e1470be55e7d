"""What on a host would spoil measurements, and what to do about it."""
