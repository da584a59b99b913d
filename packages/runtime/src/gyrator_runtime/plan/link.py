"""From stored plans to callables: references by name are resolved to objects of this process."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from attrs import field

from gyrator_ir.define import define
from gyrator_ir.types import HOST
from gyrator_runtime import host
from gyrator_runtime.host.outside import conform
from gyrator_runtime.native.kernels import LoadedKernel
from gyrator_runtime.native.load import Plan, Runner
from gyrator_runtime.native.ready import ready
from gyrator_runtime.plan.stored import StoredPlan

Run = Callable[[list[Any]], Any]


@define(eq=False)
class Linker:
    """The objects that plans refer to, and the plans linked so far."""

    runner: Runner
    kernels: Mapping[str, LoadedKernel]
    constants: Mapping[str, Any]
    user_kernels: Mapping[str, Callable[[list[Any], dict[str, Any]], None]] = field(factory=dict)
    """Launchers of user-defined Triton kernels, by key."""
    timed: bool = False
    """Record the time of each launch, for reports."""
    device_graph: Callable[[str, Run], Run] | None = None
    """Wraps the plan of a partition, given by name, to replay a captured device graph; None for no
    graphs."""
    index: int | None = None
    """Index of the device that plans run on, if it is not the one that they name."""
    launches: list[tuple[str, Plan, int]] = field(factory=list)
    """(kernel, plan, row in its timings) of every launch."""
    _plans: list[Plan] = field(factory=list)
    _partitions: dict[str, Run] = field(factory=dict)
    _places: dict[str, torch.device] = field(factory=dict)

    def link(self, stored: StoredPlan) -> Plan:
        """Return a host program as a callable of one list, which the call empties."""
        for encoded in stored.plans:
            consts = (*map(self._object, encoded.consts),)
            words = ready(encoded, consts, self.kernels.__getitem__, self.timed, self.place)
            plan = self.runner.load(words)
            self.launches += [(name, plan, k) for k, (_, name, _) in enumerate(encoded.launches)]
            self._plans.append(plan)
        return self._plans[-1]

    def _object(self, data: Any) -> Any:
        if type(data) is not list:
            return data
        fields = [self._object(d) if type(d) is list else d for d in data]
        return _MAKERS[fields[0]](self, *fields[1:])

    def place(self, name: str) -> torch.device:
        """Return the device of this process for a device name in a plan."""
        cached = self._places.get(name)
        if cached is not None:
            return cached
        device = torch.device(name)
        if self.index is not None and device.type != HOST:
            device = torch.device(device.type, self.index)
        self._places[name] = device
        return device

    def allocator(self, name: str) -> Callable[..., torch.Tensor]:
        """Return the allocator of a device."""
        return host.allocator(self.place(name))

    def operator(self, target: str) -> Callable[..., Any]:
        """Return the quickest callable for an operator."""
        return self.runner.operator(target, host.extern(target))

    def carried(self, key: str) -> Any:
        """Return a constant of the program."""
        return self.constants[key]

    def within(self, kind: str, subject: str, plan: int) -> Callable[..., Any]:
        """Return a function that runs a plan inside a new context each time."""
        run = self._plans[plan]
        context: Callable[[], AbstractContextManager[object]]
        context = partial(host.profile_range, subject)
        if kind == "device":
            context = partial(host.device_guard, self.place(subject))

        def inside(*args: Any) -> Any:
            with context():
                return run(*args)

        return inside

    def branching(self, then: int, otherwise: int) -> Callable[..., Any]:
        """Return a function that runs one of two plans."""
        yes, no = self._plans[then], self._plans[otherwise]
        return lambda condition, *args: (yes if condition else no)(*args)

    def looping(self, condition: int, body: int, carried: int, stacked: bool) -> Callable[..., Any]:
        """Return a function that runs a plan while another returns a true value."""
        test: Any = self._plans[condition]
        step: Any = self._plans[body]

        def run(*args: Any) -> Any:
            values, captured = args[:carried], args[carried:]
            while test(*values, *captured)[0]:
                values = step(*values, *captured)
            return values

        def stack(*args: Any) -> Any:
            values, captured = args[:carried], args[carried:]
            rows = []
            while test(*values, *captured)[0]:
                values = step(*values, *captured)
                rows.append(values)
            return host.stack(rows or [values])

        return stack if stacked else run

    def repeating(self, body: int, carried: int) -> Callable[..., Any]:
        """Return a function that runs a plan a given number of times."""
        step: Any = self._plans[body]

        def run(count: int, *args: Any) -> Any:
            values, captured = args[:carried], args[carried:]
            for k in range(count):
                values = step(k, *values, *captured)
            return values

        return run

    def calling(self, plan: int, partition: str) -> Callable[..., Any]:
        """Return a function that runs a plan of one list, by replaying a graph if it may."""
        run: Run = self._plans[plan]
        if partition and self.device_graph is not None:
            if partition not in self._partitions:
                self._partitions[partition] = self.device_graph(partition, run)
            run = self._partitions[partition]
        return lambda *args: run(list(args))

    def user_launch(
        self, kernel: str, grids: tuple[int, ...], names: tuple[str, ...]
    ) -> Callable[..., None]:
        """Return a function that launches a user-defined Triton kernel."""
        function = self.user_kernels[kernel]

        def launch(*values: Any) -> None:
            flat = iter(values)
            shapes = [tuple(next(flat) for _ in range(n)) for n in grids]
            function(shapes, dict(zip(names, flat, strict=True)))

        return launch


def _conforming(
    linker: Linker, rank: int, dtype: str, device: str, mend: str, name: str, what: str
) -> Callable[[Any, tuple[int, ...]], Any]:
    kind, torch_device = host.DTYPES[dtype], linker.place(device)

    def mended(value: Any, sizes: tuple[int, ...]) -> Any:
        return conform(value, sizes[:rank], sizes[rank:], kind, torch_device, mend, name, what)

    return mended


def _operating(
    target: str,
    layouts: tuple[tuple[int, str] | None, ...],
    numbers: tuple[tuple[str, int | float], ...],
) -> Callable[[tuple[Any, ...], tuple[int, ...]], Any]:
    function, named = host.extern(target), dict(numbers)

    def call(objects: tuple[Any, ...], sizes: tuple[int, ...]) -> Any:
        tensors = []
        at = 0
        for tensor, layout in zip(objects, layouts, strict=True):
            if layout is None:
                tensors.append(tensor)
                continue
            n, dtype = layout
            offset, shape, strides = sizes[at], sizes[at + 1 :][:n], sizes[at + 1 + n :][:n]
            kind = host.DTYPES[dtype]
            tensors.append(host.over_storage(tensor, shape, strides, kind, offset))
            at += 1 + 2 * n
        out, *rest = tensors
        return function(*rest, out=out, **named)

    return call


_MAKERS: Mapping[str, Callable[..., Any]] = {
    "tuple": lambda _, *items: items,
    "list": lambda _, *items: list(items),
    "complex": lambda _, *parts: complex(*parts),
    "HostFunction": lambda _, name: getattr(host, name),
    "Operator": Linker.operator,
    "TorchObject": lambda _, name: host.typed(name),
    "TorchDevice": Linker.place,
    "Allocator": Linker.allocator,
    "Conforming": _conforming,
    "Operating": lambda _, *fields: _operating(*fields),
    "Carried": Linker.carried,
    "Within": Linker.within,
    "Branching": Linker.branching,
    "Looping": Linker.looping,
    "Repeating": Linker.repeating,
    "Calling": Linker.calling,
    "UserLaunch": Linker.user_launch,
}
"""Resolvers of references, by the names of the classes in `native.references`, which loading a
stored plan does not import."""
