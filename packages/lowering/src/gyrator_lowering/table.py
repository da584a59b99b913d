"""The table that maps ATen overloads to lowering rules. A table is a value; there is no global
one."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attrs import field

from gyrator_ir.define import define, frozen

Rule = Callable[..., Any]
"""`rule(b: LoopBuilder, *args, **kwargs)`, with the arguments of the op's schema: tensors are
`TensorValue`, symbolic integers `Expr`. It returns a `TensorValue`, or a tuple or list of them, and
may raise `FallbackToAten`."""


class FallbackToAten(Exception):  # a decision, not an error
    """Raised by a rule for arguments that it does not cover: the node becomes a call of ATen."""


def _read_only(rules: Mapping[str, Rule]) -> Mapping[str, Rule]:
    return MappingProxyType(dict(rules))


@frozen
class LoweringTable:
    """An immutable map from overload (`aten.add.Tensor`) or packet (`aten.add`) to rule."""

    rules: Mapping[str, Rule] = field(converter=_read_only)
    complex_rules: Mapping[str, Rule] = field(converter=_read_only, factory=dict)
    """The rules for calls with a complex argument or result."""

    def find(self, target: str, complex: bool = False) -> Rule | None:
        """Return the rule for an overload, else the one for its packet, else None. `complex`
        selects the rules for calls with a complex argument or result."""
        rules = self.complex_rules if complex else self.rules
        rule = rules.get(target)
        return rule if rule is not None else rules.get(target.rpartition(".")[0])


@define
class TableBuilder:
    """Collects rules and refuses to replace one silently; `build()` freezes the table."""

    _rules: dict[str, Rule] = field(factory=dict)
    _complex: dict[str, Rule] = field(factory=dict)

    def rule(
        self, *targets: str, replace: bool = False, complex: bool = False
    ) -> Callable[[Rule], Rule]:
        """Register the decorated function for each target.

        Args:
            targets: overloads (`aten.add.Tensor`) or packets (`aten.add`).
            replace: allow targets that already have a rule.
            complex: register for calls with a complex argument or result, instead of all others.

        Raises:
            ValueError: if a target already has a rule and `replace` is false.
        """
        rules = self._complex if complex else self._rules

        def add(fn: Rule) -> Rule:
            for target in targets:
                if target in rules and not replace:
                    old = rules[target]
                    raise ValueError(
                        f"{target} is already lowered by {old.__module__}.{old.__qualname__}"
                    )
                rules[target] = fn
            return fn

        return add

    def build(self) -> LoweringTable:
        """Return an immutable table of the rules registered so far."""
        return LoweringTable(self._rules, self._complex)
