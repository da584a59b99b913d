"""The kernels of a host program."""

from collections.abc import Callable, Sequence

from attrs import evolve

from gyrator_ir.kernel.nodes import Kernel, KernelGroup, Launchable, TemplateKernel
from gyrator_scheduler.fusion.kernels import canonical
from gyrator_scheduler.naming import fresh


class KernelTable:
    """The kernels of a program, in order of their first launch. Kernels that differ only in names
    are one."""

    def __init__(self, stem: str) -> None:
        """`stem` begins the name of each kernel."""
        self._stem = stem
        self._names: set[str] = set()
        self._by_form: dict[Launchable, Launchable] = {}

    @property
    def kernels(self) -> tuple[Launchable, ...]:
        """The kernels so far."""
        return tuple(self._by_form.values())

    def kernel(self, kernel: Kernel) -> Launchable:
        """Return the program's kernel with the same canonical form."""
        form = canonical(kernel)[0]

        def named(name: str) -> Kernel:
            return evolve(form, name=name, origins=kernel.origins, refusals=kernel.refusals)

        return self._shared(form, kernel.name, named)

    def template(self, kernel: TemplateKernel) -> Launchable:
        """Return the program's template kernel that is equal but for its name."""
        form = evolve(kernel, name="t", origins=())
        return self._shared(form, kernel.name, lambda name: evolve(kernel, name=name))

    def group(self, members: Sequence[Kernel]) -> Launchable:
        """Return the program's kernel group with the same canonical form."""
        numbers: dict[Kernel, int] = {}
        positions = tuple(numbers.setdefault(canonical(k)[0], len(numbers)) for k in members)
        kernels = tuple(evolve(k, name=f"k{n}") for k, n in numbers.items())
        form = KernelGroup("g", members[0].device, kernels, positions)

        def named(name: str) -> KernelGroup:
            origins: list[set[int]] = [set() for _ in kernels]
            for k, number in zip(members, positions, strict=True):
                origins[number].update(k.origins)
            own = tuple(
                evolve(k, name=f"{name}_{k.name}", origins=tuple(sorted(rows)))
                for k, rows in zip(kernels, origins, strict=True)
            )
            return evolve(form, name=name, kernels=own)

        return self._shared(form, f"g{members[0].name}", named)

    def _shared(
        self, form: Launchable, name: str, named: Callable[[str], Launchable]
    ) -> Launchable:
        """Return the kernel of this form. The first time, `named` makes it from a unique name."""
        kernel = self._by_form.get(form)
        if kernel is None:
            kernel = self._by_form[form] = named(fresh(self._stem + name, self._names))
        return kernel
