"""Which rule lowers which ATen overload. A table is a value; there is no global one."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attrs import define, field, frozen

Rule = Callable[..., Any]
"""`rule(b: LoopBuilder, *args, **kwargs)`, the arguments as in the op's schema: tensors are
`TensorValue`, symbolic integers `Expr`; the result is a `TensorValue`, or a tuple or list of them.
It may raise `FallbackToAten`."""


class FallbackToAten(Exception):  # a decision, not an error
    """Raised by a rule for arguments that it does not cover: the call stays as it is."""


def _read_only(rules: Mapping[str, Rule]) -> Mapping[str, Rule]:
    return MappingProxyType(dict(rules))


@frozen
class LoweringTable:
    """An immutable map from overload (`aten.add.Tensor`) or packet (`aten.add`) to rule."""

    rules: Mapping[str, Rule] = field(converter=_read_only)

    def find(self, target: str) -> Rule | None:
        """Return the rule for an overload, or for its packet, or None."""
        rule = self.rules.get(target)
        return rule if rule is not None else self.rules.get(target.rpartition(".")[0])


@define
class TableBuilder:
    """Collects rules, refusing silent replacement; `build()` freezes it."""

    _rules: dict[str, Rule] = field(factory=dict)

    def rule(self, *targets: str, replace: bool = False) -> Callable[[Rule], Rule]:
        """Register the decorated function under each target.

        Raises:
            ValueError: when a target has a rule already and `replace` is false.
        """

        def add(fn: Rule) -> Rule:
            for target in targets:
                if target in self._rules and not replace:
                    old = self._rules[target]
                    raise ValueError(
                        f"{target} is already lowered by {old.__module__}.{old.__qualname__}"
                    )
                self._rules[target] = fn
            return fn

        return add

    def build(self) -> LoweringTable:
        """Freeze what was collected."""
        return LoweringTable(self._rules)
