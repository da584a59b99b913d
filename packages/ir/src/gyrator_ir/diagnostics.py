"""Every error the compiler raises on purpose is a `GyratorError` built from one `Diagnostic`."""

from collections.abc import Mapping
from typing import Any, Self

from attrs import frozen


@frozen
class Diagnostic:
    """What went wrong, where, and what to do about it. Data first, text second."""

    code: str  # stable and greppable: "GY-LOWER-001"; docs/errors/ explains each
    message: str  # one sentence, lower case, no full stop
    where: str = ""  # the offending IR line, as the printer prints it
    provenance: tuple[str, ...] = ()  # innermost first: IR value, FX node, user's source line
    help: str = ""  # the next action, in the imperative

    def render(self) -> str:
        """Return the text a person reads: a headline, then one labelled line per fact."""
        lines = [f"{self.code}: {self.message}"]
        if self.where:
            lines.append(f"  in:   {self.where}")
        lines.extend(f"  from: {step}" for step in self.provenance)
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


class GyratorError(Exception):
    """Base class. Callers dispatch on `error.diagnostic.code`."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.render())
        self.diagnostic = diagnostic

    @classmethod
    def of(
        cls,
        code: str,
        message: str,
        where: str = "",
        provenance: tuple[str, ...] = (),
        help: str = "",
    ) -> Self:
        """Return the error of a diagnostic with these fields."""
        return cls(Diagnostic(code, message, where, provenance, help))


class InputError(GyratorError):
    """A stage was given something else than it takes."""


class LayoutError(GyratorError, AssertionError):
    """A tensor from outside of a program is not what the program takes it for."""

    @classmethod
    def of_tensor(cls, name: str, what: str, given: object, expected: str) -> Self:
        """Return the error of what was given for a parameter `name` (GY-RUNTIME-090), or as a
        result of the op `what` (GY-RUNTIME-091)."""
        found = cls.described(given)
        if what:
            return cls.of(
                "GY-RUNTIME-091",
                f"{what} returned {found} where its meta function says {expected}",
                where=name,
                help="correct the op's meta (fake) function, or what the op returns",
            )
        return cls.of(
            "GY-RUNTIME-090",
            f"the input {name} is {found}; the program was compiled for {expected}",
            where=name,
            help="pass what the program was compiled for, or compile it for this",
        )

    @staticmethod
    def described(given: Any) -> str:
        """Say which tensor of PyTorch's this is, or what else."""
        if not hasattr(given, "untyped_storage"):
            return f"a {type(given).__name__}"
        pending = " conjugated" * given.is_conj() + " negated" * given.is_neg()
        strided = str(given.layout) == "torch.strided"
        strides = f", strides {given.stride()}" if strided else ""
        return f"{given.dtype}{pending} {tuple(given.shape)}{strides}, on {given.device}"


class VerifyError(GyratorError):
    """The IR breaks an invariant: a bug in whoever produced it, never in the user's model."""


class VerificationError(GyratorError):
    """A built kernel does not do what its IR says, or the tools that compare them are missing."""


class ParseError(GyratorError):
    """The text is not IR."""


class UnsupportedError(GyratorError):
    """The user's model needs something we do not have; the caller may fall back to eager."""


class RefusedError(UnsupportedError):
    """Some nodes of a graph cannot be compiled; `nodes` says which, by name, and why."""

    def __init__(self, nodes: Mapping[str, Diagnostic]) -> None:
        super().__init__(next(iter(nodes.values())))
        self.nodes = dict(nodes)
