"""Tables of ratios for a terminal and for Markdown, from the same rows."""

from collections.abc import Sequence

from attrs import field, frozen
from rich.console import Console
from rich.table import Table

Cell = str | float | int


@frozen
class Sheet:
    """A titled table. `summary` are the lines below it, such as geometric means."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(factory=list)
    summary: list[str] = field(factory=list)

    def markdown(self) -> str:
        """Return the sheet as a Markdown section."""
        head = f"| {' | '.join(self.columns)} |"
        rule = "|" + "|".join([" --- "] + [" ---: "] * (len(self.columns) - 1)) + "|"
        body = [f"| {' | '.join(map(show, row))} |" for row in self.rows]
        notes = [f"\n{line}" for line in self.summary]
        return "\n".join([f"### {self.title}", "", head, rule, *body, *notes, ""])

    def print(self, console: Console) -> None:
        """Print the sheet."""
        table = Table(title=self.title, title_justify="left")
        for k, column in enumerate(self.columns):
            table.add_column(column, justify="right" if k else "left")
        for row in self.rows:
            table.add_row(*map(show, row))
        console.print(table)
        for line in self.summary:
            console.print(f"  {line}", highlight=False)
        console.print()


def show(value: Cell) -> str:
    """Return a cell's text: three significant digits of a number, no exponent."""
    if not isinstance(value, float):
        return str(value)
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits if abs(value) >= 0.1 or not value else 3}f}"


def failed_row(name: str, found: dict[str, str], width: int) -> Sequence[Cell]:
    """Return the row of a measurement that failed: its error, and blanks."""
    return (name, found["error"][:60], *[""] * (width - 2))
