"""Regular expressions of clients: RE2's syntax, as Kafka's brokers read them, in time that is linear in the text.

Python's own `re` does not do: it reads other things into the same characters (`$` matches before a last newline, `\\d`
any digit of any script, `\\Z` is allowed), and some patterns take it time that doubles with each character, in which
nothing else runs.

- `charsets.py`: which characters one place of a pattern takes.
- `syntax.py`: a pattern becomes a tree, or an error that says where it is wrong.
- `program.py`: a tree becomes states, and texts are matched by all of them at once.
"""

from kclient.gateway.patterns.program import LinearPattern as LinearPattern

__all__ = ["LinearPattern"]
