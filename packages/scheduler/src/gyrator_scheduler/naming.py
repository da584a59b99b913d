"""Names that nothing else has."""


def fresh(stem: str, taken: set[str]) -> str:
    """Return a name like `stem` that is not taken, and take it."""
    while stem in taken:
        stem += "_"
    taken.add(stem)
    return stem
