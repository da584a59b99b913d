"""The layouts of the tensors that a program allocates."""

from collections.abc import Iterable, Iterator, Mapping

from gyrator_ir.define import frozen
from gyrator_ir.expr import Expr
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import binds, walk
from gyrator_ir.types import Device, DType


@frozen
class Layout:
    """A dtype, sizes, strides, and the device if the program specifies it."""

    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: Device | None


@frozen
class Layouts:
    """The layout of each name that memory instructions bind with a single layout."""

    by_name: Mapping[str, Layout]

    @staticmethod
    def of(program: h.HostProgram) -> "Layouts":
        """Collect the layouts of a program, without its subprograms."""
        layouts: dict[str, Layout | None] = {p.name: None for p in program.parameters}
        for name, layout in _bound(program.instructions):
            layouts[name] = layout if layouts.get(name, layout) == layout else None
        return Layouts({name: layout for name, layout in layouts.items() if layout is not None})

    def same(self, i: h.Reuse) -> bool:
        """Return whether the source of a reuse has the layout of the result."""
        source = self.by_name.get(i.source)
        return source is not None and (source.dtype, source.shape, source.strides) == (
            i.dtype,
            i.shape,
            i.strides,
        )

    def host_floats(self, name: str) -> bool:
        """Return whether a tensor is known to contain real floats on the CPU."""
        layout = self.by_name.get(name)
        if layout is None or layout.device is None:
            return False
        return layout.device.is_host and layout.dtype.is_float and not layout.dtype.is_complex


def _bound(instructions: Iterable[h.Instruction]) -> Iterator[tuple[str, Layout | None]]:
    devices: dict[str, Device | None] = {}
    for i in walk(instructions):
        match i:
            case h.Allocate(name=name, device=device):
                devices[name] = device
                yield name, Layout(i.dtype, i.shape, i.strides, device)
            case h.AllocatePool(name=name, device=device):
                devices[name] = device
                yield name, None
            case h.AllocateFromPool(name=name, pool=source):
                devices[name] = devices.get(source)
                yield name, Layout(i.dtype, i.shape, i.strides, devices[name])
            case h.Reuse(name=name, source=source) | h.View(name=name, source=source):
                devices[name] = devices.get(source)
                yield name, Layout(i.dtype, i.shape, i.strides, devices[name])
            case _ if not isinstance(i, h.WithDevice | h.ProfileRange):
                carried = i.carried if isinstance(i, h.Loop | h.Repeat) else ()
                yield from ((name, None) for name in (*binds(i), *carried))
