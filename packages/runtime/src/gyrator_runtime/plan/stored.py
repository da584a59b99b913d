"""Serialisation of plans as JSON: their words, and their references by name."""

import json
from collections.abc import Iterable
from typing import Any

from attrs import evolve

from gyrator_ir.define import frozen
from gyrator_runtime.native.ready import Encoded

FORMAT = 2
"""Format version of words and references in stored plans, increased when one changes meaning."""
_FIELDS = ("n_args", "n_regs", "boxed", "code", "ints", "groups", "operators", "devices")


@frozen
class StoredPlan:
    """The plans of a host program, each after the plans that it calls; the program's own is last.

    Constants are data: scalars, and lists of a class name and its fields.
    """

    plans: tuple[Encoded, ...]

    @classmethod
    def of(cls, plans: Iterable[Encoded]) -> "StoredPlan":
        """Return the stored form of plans. TypeError for constants other than scalars, tuples,
        lists and references."""
        return cls(tuple(evolve(p, consts=tuple(map(_data, p.consts))) for p in plans))

    def text(self) -> str:
        """Return the text form for `parse`."""
        return json.dumps([_row(p) for p in self.plans], separators=(",", ":"))


def parse(text: str) -> StoredPlan:
    """Return the plans of a text written by `StoredPlan.text`."""
    plans = [
        Encoded(
            **{name: row[name] for name in _FIELDS if name in row},
            consts=row["consts"],
            launches=[(name, name, ()) for name in row["launches"]],
        )
        for row in json.loads(text)
    ]
    return StoredPlan(tuple(plans))


def _row(plan: Encoded) -> dict[str, Any]:
    row = {name: getattr(plan, name) for name in _FIELDS}
    return row | {"consts": plan.consts, "launches": [kernel for kernel, _, _ in plan.launches]}


def _data(value: Any) -> Any:
    """Return an object as data: a scalar itself, others as a list that starts with the class."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case complex():
            return ["complex", value.real, value.imag]
        case tuple() | list():
            return [type(value).__name__, *map(_data, value)]
    fields = getattr(type(value), "__attrs_attrs__", None)
    if fields is None:
        raise TypeError(f"a stored plan cannot contain {value!r}")
    return [type(value).__name__, *(_data(getattr(value, f.name)) for f in fields)]
