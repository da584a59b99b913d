"""Lines of program text with indentation, and which line stands for which origin."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gyrator_ir.provenance import Origin


class Writer:
    """Collects lines; the only mutable thing in an emitter.

    Args:
        step: what one level of indentation is written as.
    """

    def __init__(self, step: str = "  ") -> None:
        self._lines: list[str] = []
        self._origins: list[tuple[int, int]] = []
        self._step = step
        self._indent = ""

    def line(self, text: str) -> None:
        """Append one line at the current indentation."""
        self._lines.append(self._indent + text if text else "")

    def lines(self, *texts: str) -> None:
        """Append lines at the current indentation."""
        for text in texts:
            self.line(text)

    def origin(self, row: int) -> None:
        """Say that the next line stands for row `row` of the program's table of origins."""
        self._origins.append((len(self._lines) + 1, row))

    @contextmanager
    def block(self, head: str, end: str = "}") -> Iterator[None]:
        """Write `head`, what the `with` body writes one level deeper, and `end`.

        An `end` of "" writes nothing, for languages that close a block by indentation.
        """
        self.line(head)
        outside = self._indent
        self._indent += self._step
        yield
        self._indent = outside
        if end:
            self.line(end)

    @property
    def text(self) -> str:
        """All lines, each ended by a newline."""
        return "\n".join(self._lines) + "\n" if self._lines else ""

    @property
    def source_map(self) -> tuple[tuple[int, int], ...]:
        """Pairs (line of `text` from 1, row of the origins), in order of lines."""
        return tuple(self._origins)


class Names:
    """Gives identifiers that are free in the target language, each only once.

    Args:
        reserved: words that the language or the emitter's prelude takes.
    """

    def __init__(self, reserved: frozenset[str]) -> None:
        self._reserved = reserved
        self._taken: set[str] = set()
        self._stable: dict[str, str] = {}

    def take(self, wanted: str) -> str:
        """Return `wanted`, or with underscores and a number where it is taken or reserved."""
        name = wanted
        count = 0
        while name in self._taken or name in self._reserved:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name

    def stable(self, name: str) -> str:
        """Return the identifier for `name`, the same at every call."""
        word = self._stable.get(name)
        if word is None:
            word = self._stable[name] = self.take(name)
        return word


def write_origins(
    writer: Writer, rows: Sequence[int], origins: Sequence[Origin], mark: str = "#"
) -> None:
    """Write the user's lines that a kernel computes, as comments.

    They are ASCII, for not every compiler takes more, and no backslash at an end takes a next line.
    """
    seen: set[str] = set()
    for row in rows:
        if not 0 <= row < len(origins):
            continue
        origin = origins[row]
        place = f"  {mark} {origin.location}" if origin.location else ""
        said = f": {origin.code}" if origin.code else ""
        text = " ".join(f"{mark} {origin.node} = {origin.target}{place}{said}".split())
        if text not in seen:
            seen.add(text)
            writer.origin(row)
            writer.line(text.encode("ascii", "backslashreplace").decode().rstrip("\\"))
