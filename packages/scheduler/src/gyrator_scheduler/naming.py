"""Unique names."""


def fresh(stem: str, used_names: set[str]) -> str:
    """Return a name that starts with `stem` and is not in `used_names`, and add it there."""
    while stem in used_names:
        stem += "_"
    used_names.add(stem)
    return stem
