"""`define` and `frozen` of attrs for classes that are defined in less time.

attrs writes and compiles the methods of a class when it is defined. A first compile defines 500
classes, most of whose objects it neither compares nor prints. The decorators of this module differ
from those of attrs only in that `__repr__`, and for frozen classes `__eq__` and `__hash__`, are
generated when they are first called.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:  # type checkers know the decorators of attrs by their names
    from attrs import define, frozen

__all__ = ["define", "frozen"]


def _define(
    decorator: Callable[..., Any], compared: bool, cls: type | None = None, /, **options: Any
) -> Any:
    if cls is None:
        return partial(_define, decorator, compared, **options)
    own = vars(cls).keys()
    late: tuple[str, ...] = ()
    if "__repr__" not in own and options.get("repr") is not False:
        late, options["repr"] = ("__repr__",), False
    if compared and options.get("eq", True) and not own & {"__eq__", "__hash__"}:
        late, options["eq"] = (*late, "__eq__", "__hash__"), False
    defined: type = decorator(cls, **options)
    for name in late:
        setattr(defined, name, _late(defined, name, late))
    return defined


def _late(cls: type, name: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a method that has attrs generate the methods `names` of `cls`, and calls its own."""

    def method(self: object, *operands: object) -> Any:
        fields = {
            a.name: attrs.field(eq=a.eq_key or a.eq, hash=a.hash, repr=a.repr)
            for a in attrs.fields(cls)
        }
        like = attrs.make_class(cls.__name__, fields, frozen=True, init=False, order=False)
        for each in names:
            setattr(cls, each, vars(like)[each])
        return getattr(cls, name)(self, *operands)

    return method


if not TYPE_CHECKING:
    define = partial(_define, attrs.define, False)
    frozen = partial(_define, attrs.frozen, True)
