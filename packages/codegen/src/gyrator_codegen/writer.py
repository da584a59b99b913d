"""A writer of program text, with indentation and a source map."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gyrator_ir.provenance import Origin


class Writer:
    """Collects the lines of a program.

    Args:
        step: the text of one level of indentation.
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
        """Map the next line to row `row` of the program's origins."""
        self._origins.append((len(self._lines) + 1, row))

    @contextmanager
    def block(self, head: str, end: str = "}") -> Iterator[None]:
        """Write `head`, the lines of the `with` body indented by one level, and `end`.

        If `end` is empty, it is not written, as for languages that close a block by indentation.
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
        """The text of all lines, each ending in a newline."""
        return "\n".join(self._lines) + "\n" if self._lines else ""

    @property
    def source_map(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a line of `text`, counted from 1, and a row of the origins, in line order."""
        return tuple(self._origins)


class Names:
    """Generates unique identifiers.

    Args:
        reserved: identifiers that are not available, such as the words of the target language.
    """

    def __init__(self, reserved: frozenset[str]) -> None:
        self._reserved = reserved
        self._used: set[str] = set()
        self._stable: dict[str, str] = {}

    def take(self, base: str) -> str:
        """Return a new identifier: `base`, with a numeric suffix if it is used or reserved."""
        name = base
        count = 0
        while name in self._used or name in self._reserved:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name

    def stable(self, name: str) -> str:
        """Return the identifier of `name`, the same one for every call."""
        word = self._stable.get(name)
        if word is None:
            word = self._stable[name] = self.take(name)
        return word


def write_origins(
    writer: Writer, rows: Sequence[int], origins: Sequence[Origin], mark: str = "#"
) -> None:
    """Write the user's source lines of a kernel as comments.

    The comments are ASCII, since not every compiler accepts more, and do not end in a backslash,
    which would continue them on the next line.
    """
    written: set[str] = set()
    for row in rows:
        if not 0 <= row < len(origins):
            continue
        origin = origins[row]
        location = f"  {mark} {origin.location}" if origin.location else ""
        code = f": {origin.code}" if origin.code else ""
        text = " ".join(f"{mark} {origin.node} = {origin.target}{location}{code}".split())
        if text not in written:
            written.add(text)
            writer.origin(row)
            writer.line(text.encode("ascii", "backslashreplace").decode().rstrip("\\"))
