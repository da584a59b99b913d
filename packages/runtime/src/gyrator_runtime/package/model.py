"""A loaded package: its entry points as functions, and the weights that they work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from attrs import define, field, frozen

from gyrator_ir.diagnostics import LayoutError
from gyrator_ir.types import HOST
from gyrator_runtime.host.outside import laid_out
from gyrator_runtime.package.calls import Arguments, Check, Results, checks_of
from gyrator_runtime.package.errors import no_entry, wrong_weight
from gyrator_runtime.package.manifest import Entry, PackageManifest, Weight
from gyrator_runtime.package.weights import read_weights
from gyrator_runtime.plan.link import Run

_DEFAULT = "forward"


@frozen(eq=False)
class Function:
    """An entry point that is linked; it keeps no state."""

    entry: Entry
    plan: Run
    arguments: Arguments
    checks: Sequence[Check]
    results: Results
    tokens: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, entry: Entry, plan: Run) -> Function:
        """Link a plan with its signature."""
        tokens = tuple(torch.empty(0) for _ in range(entry.tokens))
        return cls(entry, plan, Arguments.of(entry), checks_of(entry), Results.of(entry), tokens)

    def run(
        self, weights: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call it with the weights that it takes."""
        leaves = self.arguments.leaves(args, kwargs)
        sizes: dict[str, int] = {}
        for check, leaf in zip(self.checks, leaves, strict=True):
            check(leaf, sizes)
        given = [*weights, *leaves]
        if not self.tokens:
            return self.results.of_values(_run(self.plan, given), given)
        values = _run(self.plan, [*self.tokens, *given])
        return self.results.of_values(values[len(self.tokens) :], given)


def _run(plan: Run, given: list[Any]) -> Sequence[Any]:
    """Run a plan outside of autograd and autocast, whose work the compiler has done."""
    if torch._C._is_any_autocast_enabled():
        with torch._C._DisableAutocast():
            return _without_grad(plan, given)
    return _without_grad(plan, given)


def _without_grad(plan: Run, given: list[Any]) -> Sequence[Any]:
    if not torch.is_grad_enabled():
        return plan(list(given))  # type: ignore[no-any-return]  # a boxed plan gives a tuple
    torch._C._set_grad_enabled(False)
    try:
        return plan(list(given))  # type: ignore[no-any-return]  # a boxed plan gives a tuple
    finally:
        torch._C._set_grad_enabled(True)


@frozen(eq=False)
class Loaded:
    """What all instances of a loaded package share."""

    manifest: PackageManifest
    functions: Mapping[str, Function]
    stored: Mapping[str, torch.Tensor]
    """Tensors of the weights' member: mapped, or on the device."""
    isa: str
    """The instruction set level, or the architecture, that was chosen."""
    runner: str
    """`native` or `pure`."""
    device: torch.device

    def first_weights(self) -> dict[str, torch.Tensor]:
        """Return the weights as they were packaged."""
        return {w.name: self._first(w) for w in self.manifest.weights}

    def _first(self, weight: Weight) -> torch.Tensor:
        stored = self.stored[weight.tensor]
        if stored.stride() != weight.strides and stored.numel() > 1:
            return laid_out(stored, weight.strides)
        return stored.clone() if weight.written else stored


@frozen(eq=False)
class _State:
    """The weights of an instance: replaced as a whole."""

    weights: Mapping[str, torch.Tensor]
    by_entry: Mapping[str, tuple[torch.Tensor, ...]]

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor], entries: Sequence[Entry]) -> _State:
        by_entry = {e.name: tuple(weights[n] for n in e.weights) for e in entries}
        return cls(MappingProxyType(dict(weights)), MappingProxyType(by_entry))


@define(eq=False)
class Model:
    """An instance of a package: call it as the module that was compiled.

    Calls may run in many threads at once. Weights can be replaced meanwhile: a call works with
    those that there were when it began. Programs that write to buffers do so without a lock, as
    eager mode does.
    """

    _loaded: Loaded
    _state: _State = field(init=False)
    _default: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._state = _State.of(self._loaded.first_weights(), self.manifest.entries)
        names = self.entries
        self._default = names[0] if len(names) == 1 else _DEFAULT

    @property
    def manifest(self) -> PackageManifest:
        """What the package says of itself."""
        return self._loaded.manifest

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of its entry points."""
        return tuple(self._loaded.functions)

    @property
    def isa(self) -> str:
        """The instruction set level, or the device's architecture, of the kernels that run."""
        return self._loaded.isa

    @property
    def device(self) -> torch.device:
        """What the programs run on."""
        return self._loaded.device

    @property
    def runner(self) -> str:
        """`native`, or `pure` where plans run in Python."""
        return self._loaded.runner

    @property
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights of this instance, by name. Those that no program writes are shared."""
        return self._state.weights

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the only entry point, or the one called `forward`.

        PackageError: GY-PACKAGE-006 for arguments of another number or structure, GY-PACKAGE-007
        for one of another type, element type, size or device.
        """
        function = self._loaded.functions.get(self._default)
        if function is None:
            raise no_entry(self._default, ", ".join(self.entries))
        return function.run(self._state.by_entry[self._default], args, kwargs)

    def entry(self, name: str) -> Callable[..., Any]:
        """Return an entry point as a function. PackageError (GY-PACKAGE-005) where there is none
        of that name."""
        function = self._loaded.functions.get(name)
        if function is None:
            raise no_entry(name, ", ".join(self.entries))

        def call(*args: Any, **kwargs: Any) -> Any:
            return function.run(self._state.by_entry[name], args, kwargs)

        return call

    def instance(self) -> Model:
        """Return another instance, with the weights of the package. It shares with this one the
        programs, and the memory of all weights that no program writes."""
        return Model(self._loaded)

    def replace(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Put tensors in the place of some weights, for calls that begin from now on.

        They are used, not copied, where they lie as the package's do and no program writes to
        them; those of the CPU are copied to the device. PackageError (GY-PACKAGE-008) for one that
        does not fit; then none is replaced.
        """
        known = {w.name: w for w in self.manifest.weights}
        fitting: dict[str, torch.Tensor] = {}
        for name, tensor in weights.items():
            if name not in known:
                raise wrong_weight(name, f"there is none; there are: {', '.join(known)}")
            fitting[name] = _fitting(known[name], tensor, self.device)
        self._state = _State.of({**self.weights, **fitting}, self.manifest.entries)

    def load_weights(self, weights: Mapping[str, torch.Tensor] | str | Path) -> None:
        """Replace all parameters and buffers, by those of a state dict or a safetensors file.

        PackageError (GY-PACKAGE-008) for one that is missing or does not fit; then none is
        replaced.
        """
        given = weights if isinstance(weights, Mapping) else read_weights(Path(weights))
        for weight in self.manifest.weights:
            if weight.kind != "constant" and weight.name not in given:
                raise wrong_weight(weight.name, "it is missing")
        self.replace(given)


def _fitting(weight: Weight, tensor: Any, device: torch.device) -> torch.Tensor:
    """Return a tensor as programs take a weight that run on a device."""
    if not isinstance(tensor, torch.Tensor):
        raise wrong_weight(weight.name, f"it is a {type(tensor).__name__}")
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    place = torch.device(HOST) if weight.hosted else device
    fits = tensor.layout is torch.strided and tensor.device in (place, torch.device(HOST))
    if (dtype, shape) != (weight.dtype, weight.shape) or not fits:
        expected = f"{weight.dtype}{list(weight.shape)} on {place}"
        raise wrong_weight(weight.name, f"it is {LayoutError.described(tensor)}, not {expected}")
    plain = tensor.detach().to(place)
    pending = plain.is_conj() or plain.is_neg()
    if pending or (plain.numel() > 1 and plain.stride() != weight.strides):
        return laid_out(plain, weight.strides)
    return plain.clone() if weight.written else plain
