"""Recording what computes: kernels, operators, copies."""

from typing import Any

from attrs import define

from gyrator_runtime import host
from gyrator_runtime.native.program import Buffer, Const, launch_of
from gyrator_runtime.record.operators import operate
from gyrator_runtime.record.recording import Recording
from gyrator_runtime.record.values import AnySize, Handle, Size, plan_size, size_tuple


@define
class WorkInstructions(Recording):
    """Launches and calls of operators."""

    def launch(self, kernel: str, tensors: tuple[Handle, ...], sizes: tuple[AnySize, ...]) -> None:
        """Run a kernel."""
        loaded = self.rt.kernels[kernel]
        self._launched.append(kernel)
        self.instructions.append(
            launch_of(
                loaded.function,
                tuple(Buffer(t.register, t.offset) for t in tensors),
                tuple(plan_size(s) for s in sizes),
                loaded.checks,
                release_gil=loaded.release_gil,
                name=loaded.name,
            )
        )

    def extern(
        self,
        target: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: tuple[str | int | None, ...] = (),
    ) -> Any:
        """Call a dispatcher op. `results` describes its returns: 'tensor', 'size', the length of a
        tensor list, or None for one that is not used. The tuple of all used ones comes back."""
        if not results and (quick := operate(target, args, kwargs)) is not None:
            self.instructions.append(quick)
            return ()
        function = host.extern(target)
        values = tuple(self._value(a) for a in args)
        named = tuple((k, self._value(v)) for k, v in kwargs.items())
        if not any(r is not None for r in results):
            self._call(function, values, named, result=False)
            return ()
        whole = self._call(function, values, named)
        found: list[Handle | Size] = []
        parts = (
            [whole]
            if len(results) == 1
            else [self._item(whole, k) if r is not None else whole for k, r in enumerate(results)]
        )
        for part, kind in zip(parts, results, strict=True):
            match kind:
                case "tensor":
                    found.append(part)
                case "size":
                    found.append(Size((("arg", part.register),)))
                case int():
                    found.extend(self._item(part, k) for k in range(kind))
                    self.free(part)
        if len(results) > 1:
            self.free(whole)
        return tuple(found)

    def copy(self, destination: Handle, source: Handle, non_blocking: bool) -> None:
        """Copy a tensor into another."""
        args = (self._reg(destination), self._reg(source), Const(non_blocking))
        self._call(host.copy, args, result=False)

    def read_scalar(self, tensor: Handle) -> Size:
        """Return the value of a one-element integer tensor."""
        return self._size_call(host.read_scalar, (self._reg(tensor),))

    def triton(
        self,
        kernel: str,
        grid: tuple[tuple[AnySize, ...], ...],
        args: dict[str, Any],
        constants: dict[str, Any],
    ) -> None:
        """Launch a user's Triton kernel: `rt.triton_kernels[kernel](grid, arguments)`."""
        function = self.rt.triton_kernels[kernel]
        names = (*args, *constants)
        shape = tuple(len(g) for g in grid)

        def launch(*values: Any) -> None:
            flat = iter(values)
            grids = [tuple(next(flat) for _ in range(n)) for n in shape]
            function(grids, dict(zip(names, flat, strict=True)))

        sizes = tuple(plan_size(s) for g in grid for s in g)
        given = tuple(self._value(v) for v in (*args.values(), *constants.values()))
        self._call(launch, (*sizes, *given), result=False)

    def tma_descriptor(
        self,
        tensor: Handle,
        shape: tuple[AnySize, ...],
        block: tuple[AnySize, ...],
        element_bytes: AnySize,
        stable: bool,
    ) -> Handle:
        """Return a tensor-map descriptor, for a user's Triton kernel."""
        layout = (size_tuple(shape), size_tuple(block), plan_size(element_bytes), Const(stable))
        return self._call(host.tma_descriptor, (self._reg(tensor), *layout))

    def wait_collective(self, tensor: Handle) -> None:
        """Wait for the collective that fills a tensor."""
        function = host.extern("_c10d_functional.wait_tensor.default")
        self._call(function, (self._reg(tensor),), result=False)
