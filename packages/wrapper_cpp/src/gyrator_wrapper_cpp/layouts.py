"""The layouts of the tensors that a program makes itself."""

from collections.abc import Iterable, Iterator, Mapping

from attrs import frozen

from gyrator_ir.expr import Expr
from gyrator_ir.host import nodes as h
from gyrator_ir.host.walk import binds, walk
from gyrator_ir.types import Device, DType


@frozen
class Layout:
    """An element type, sizes and strides; the device, where the program says it."""

    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: Device | None


@frozen
class Layouts:
    """The layout of each name that an instruction of memory binds, always the same one."""

    known: Mapping[str, Layout]

    @staticmethod
    def of(program: h.HostProgram) -> "Layouts":
        """Collect the layouts of a program, without its subprograms."""
        found: dict[str, Layout | None] = {p.name: None for p in program.parameters}
        for name, layout in _bound(program.instructions):
            found[name] = layout if found.get(name, layout) == layout else None
        return Layouts({name: layout for name, layout in found.items() if layout is not None})

    def same(self, i: h.Reuse) -> bool:
        """Say whether the source of a reuse is laid out as the result is."""
        source = self.known.get(i.source)
        return source is not None and (source.dtype, source.shape, source.strides) == (
            i.dtype,
            i.shape,
            i.strides,
        )

    def host_floats(self, name: str) -> bool:
        """Say whether a tensor is known to hold real floating-point numbers on the host."""
        found = self.known.get(name)
        if found is None or found.device is None:
            return False
        return found.device.is_host and found.dtype.is_float and not found.dtype.is_complex


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
