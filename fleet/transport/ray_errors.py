"""What Ray's errors say of the end of an actor. Pure."""

from __future__ import annotations


def end_cause(error: Exception) -> str:
    """Why an actor ended, in one line, from what Ray says in many."""
    if is_of_host(error):
        return "its host left the cluster"
    return "its process died: " + " ".join(str(error).split())[:300]


def is_of_host(error: Exception) -> bool:
    """Whether an actor ended with its host, by what Ray says."""
    text = str(error).lower()
    return "died" in text and "actor's node" in text


def first_line(error: Exception) -> str:
    """The first line of an error, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
