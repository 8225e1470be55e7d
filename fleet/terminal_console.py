"""Rich's console for text that may come from outside (`fleet.terminal_text`)."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fleet.terminal_text import visible


class TerminalConsole(Console):
    """A console that writes out what cannot be printed, and takes no text for markup or pictures.

    Colours and cursor movements are rich's own: they are no text to it.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, text made visible."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text, kept="\n\t"), segment.style)
