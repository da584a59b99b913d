"""The options of lowering."""

from collections.abc import Mapping
from types import MappingProxyType

from gyrator_ir.define import frozen
from gyrator_ir.modes import Numerics

__all__ = ["LoweringOptions"]

NO_CALLS: Mapping[str, str] = MappingProxyType({})


@frozen(kw_only=True)
class LoweringOptions:
    """Options of `lower`. They are part of the cache key of everything that is compiled."""

    name: str = "main"
    """Name of the program."""
    fallback_random: bool = False
    """Random numbers come from ATen's own generators, in eager's order, through extern calls; the
    pass `replace-random` is off."""
    extern_ops: frozenset[str] = frozenset()
    """Overloads (`aten.cumsum.default`) that stay ATen calls although a rule exists."""
    extern_kernels: str = "library"
    """`library`: dense products, convolutions and attention call a library. `none`: they are
    lowered to loops like everything else, whatever their shapes."""
    generated: frozenset[str] = frozenset()
    """Names of graph nodes whose products are lowered to loops regardless of `extern_kernels`."""
    numerics: Numerics = Numerics.EAGER
    """`BITWISE`: an op that kernels would not compute with eager's exact bits is a call of ATen."""
    deterministic: bool = False
    """The results of kernels do not depend on the order in which threads store. Ops whose kernels
    would violate this call ATen, whose op has a fixed order or raises."""
    fills_empty: bool = False
    """Uninitialised memory (`empty`) is filled with NaN, or with the largest integer."""
    called: Mapping[str, str] = NO_CALLS
    """Nodes of the graph and of its regions that become calls although a rule exists: their names,
    and why; for instance because a kernel language refused the rule's kernel."""
    strict: bool = False
    """Raise the exceptions of rules instead of falling back to ATen."""
