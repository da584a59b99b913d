"""Plans as text and back: JSON, of words and of what they refer to by name."""

import json
from collections.abc import Iterable
from typing import Any

from attrs import evolve, frozen

from gyrator_runtime.native.ready import Encoded

FORMAT = 1
"""Of the words of plans and of what they refer to, for what outlives a version; raised when one
of them changes its meaning."""
_FIELDS = ("n_args", "n_regs", "boxed", "code", "ints", "groups", "operators", "devices")


@frozen
class StoredPlan:
    """The plans of a host program. Each comes after those that it calls; its own is the last.

    Their constants are data: scalars, and lists of the name of a class and its fields.
    """

    plans: tuple[Encoded, ...]

    @classmethod
    def of(cls, plans: Iterable[Encoded]) -> "StoredPlan":
        """Return plans whose constants are scalars, tuples, lists and references; TypeError for
        others."""
        return cls(tuple(evolve(p, consts=tuple(map(_data, p.consts))) for p in plans))

    def text(self) -> str:
        """Return what `parse` reads."""
        return json.dumps([_row(p) for p in self.plans], separators=(",", ":"))


def parse(text: str) -> StoredPlan:
    """Return the plans of a text."""
    return StoredPlan(
        tuple(
            Encoded(
                **{name: row[name] for name in _FIELDS if name in row},
                consts=row["consts"],
                launches=[(name, name, ()) for name in row["launches"]],
            )
            for row in json.loads(text)
        )
    )


def _row(plan: Encoded) -> dict[str, Any]:
    row = {name: getattr(plan, name) for name in _FIELDS}
    return row | {
        "consts": plan.consts,
        "launches": [kernel for kernel, _, _ in plan.launches],
    }


def _data(value: Any) -> Any:
    """Write an object: scalars as they are, the others as a list that begins with their class."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case complex():
            return ["complex", value.real, value.imag]
        case tuple() | list():
            return [type(value).__name__, *map(_data, value)]
    fields = getattr(type(value), "__attrs_attrs__", None)
    if fields is None:
        raise TypeError(f"a plan that is stored cannot hold {value!r}")
    return [type(value).__name__, *(_data(getattr(value, f.name)) for f in fields)]
