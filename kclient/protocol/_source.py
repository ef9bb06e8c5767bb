"""A function's source while it is being written, with the constants that it refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Source:
    """Lines of Python, their indentation, and the globals that they will run with.

    Args:
        name: Name of the function.
        title: What tracebacks show in place of a file name.
    """

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self.constants: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._used: dict[str, int] = {}

    def line(self, text: str) -> None:
        """Add one line at the present indentation."""
        self._lines.append("    " * self._depth + text)

    def place(self) -> Callable[[str], None]:
        """A function that adds lines here, whatever was added below meanwhile."""
        index, indent = len(self._lines), "    " * self._depth
        return lambda text: self._lines.insert(index, indent + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent what is added inside."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line that opens a block, and indent what is added inside."""
        self.line(head)
        with self.indented():
            yield

    def constant(self, name: str, value: Any) -> str:
        """Make a value a global under a name that tells what it is; the same name means the same value."""
        self.constants[name] = value
        return name

    def fresh(self, stem: str) -> str:
        """A local name that was not used yet."""
        self._used[stem] = self._used.get(stem, 0) + 1
        return f"{stem}{self._used[stem]}"

    def text(self) -> str:
        """The whole source."""
        return "\n".join(self._lines) + "\n"
