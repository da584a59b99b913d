"""Tensor names in a host program, and the views that calls and results need."""

from collections.abc import Mapping

from gyrator_ir.expr import ZERO
from gyrator_ir.host.nodes import Instruction, ListValue, Ref, Value, View
from gyrator_ir.loop.nodes import Arg, Buffer, ListArg, Output, TensorRef


class Names:
    """Creates unique names, and converts arguments to operands. Each view is created once."""

    def __init__(self, buffers: Mapping[str, Buffer], reserved: set[str]) -> None:
        self._buffers = buffers
        self._used_names = set(buffers) | reserved
        self._count = 0
        self._views: dict[str, dict[TensorRef, str]] = {}

    def fresh(self, stem: str) -> str:
        """Return a unique name that starts with `stem`."""
        while True:
            name = f"{stem}{self._count}"
            self._count += 1
            if name not in self._used_names:
                self._used_names.add(name)
                return name

    def tensor(self, ref: TensorRef, out: list[Instruction]) -> str:
        """Return the name of a view; on first use, append its instruction to `out`."""
        b = self._buffers[ref.buffer]
        at_start = ref.dtype is b.dtype and ref.offset is ZERO and not ref.twin
        if at_start and ref.shape == b.shape and ref.strides == b.strides:
            return b.name
        views = self._views.setdefault(ref.buffer, {})
        if ref not in views:
            name = self.fresh("view")
            out.append(View(name, ref.buffer, ref.dtype, ref.shape, ref.strides, ref.offset))
            views[ref] = name
        return views[ref]

    def value(self, arg: Arg | Output, out: list[Instruction]) -> Value:
        """Convert an argument or result to an operand."""
        if isinstance(arg, TensorRef):
            return Ref(self.tensor(arg, out))
        if isinstance(arg, ListArg):
            return ListValue(tuple(self.value(a, out) for a in arg.items))
        return arg

    def forget_views(self, buffer: str) -> list[str]:
        """Return the views of a buffer that is about to be freed, and forget them."""
        return list(self._views.pop(buffer, {}).values())

    def forget_all(self) -> list[str]:
        """Return all views, and forget them."""
        names = [name for views in self._views.values() for name in views.values()]
        self._views.clear()
        return names
