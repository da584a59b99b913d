"""Everything that lowering may choose."""

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from gyrator_ir.modes import Numerics

__all__ = ["LoweringOptions"]

NO_CALLS: Mapping[str, str] = MappingProxyType({})


@frozen(kw_only=True)
class LoweringOptions:
    """Options of `lower`. Part of the cache key of whatever is compiled."""

    name: str = "main"
    """Name of the program."""
    fallback_random: bool = False
    """Random numbers come from ATen's own generator, in eager's order, by extern calls:
    `replace-random` is off."""
    extern_ops: frozenset[str] = frozenset()
    """Overloads (`aten.cumsum.default`) that stay ATen calls although a rule exists."""
    extern_kernels: str = "library"
    """`library`: dense products, convolutions and attention are calls of a library. `none`: they
    are loops like all else, for every shape."""
    generated: frozenset[str] = frozenset()
    """Nodes of the graph, by name, whose products are loops whatever `extern_kernels` says."""
    numerics: Numerics = Numerics.EAGER
    """`BITWISE`: what kernels would not compute with eager's bits is a call of ATen."""
    deterministic: bool = False
    """No kernel's result depends on the order in which threads store: where it would, ATen's op is
    called, which has an order of its own or raises."""
    fills_empty: bool = False
    """Memory that nothing was written to holds NaN, or the greatest integer."""
    called: Mapping[str, str] = NO_CALLS
    """Nodes of the graph and of its regions, by name, that are calls although a rule exists: why,
    such as that a kernel language refused what the rule made."""
    strict: bool = False
    """Raise what a rule raises, where else the op is left to ATen."""
