"""Every error the compiler raises on purpose is a `GyratorError` built from one `Diagnostic`."""

from collections.abc import Mapping
from typing import Any, Self

from gyrator_ir.define import frozen


@frozen
class Diagnostic:
    """What went wrong, where, and what to do about it."""

    code: str  # stable and greppable: "GY-LOWER-001"; docs/errors/ explains each
    message: str  # one sentence, lower case, no full stop
    where: str = ""  # the offending IR line, as the printer prints it
    provenance: tuple[str, ...] = ()  # innermost first: IR value, FX node, user's source line
    help: str = ""  # the next action, in the imperative

    def render(self) -> str:
        """Return the text for readers: a headline, then one labelled line per field."""
        lines = [f"{self.code}: {self.message}"]
        if self.where:
            lines.append(f"  in:   {self.where}")
        lines.extend(f"  from: {step}" for step in self.provenance)
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


class GyratorError(Exception):
    """Base class of all errors. Callers dispatch on `error.diagnostic.code`."""

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
        """Return an error with a diagnostic of these fields."""
        return cls(Diagnostic(code, message, where, provenance, help))


class InputError(GyratorError):
    """An argument of a stage has the wrong type."""


class LayoutError(GyratorError, AssertionError):
    """A tensor does not have the type, shape, strides or device that the program expects."""

    @classmethod
    def of_tensor(cls, name: str, op: str, value: object, expected: str) -> Self:
        """Return the error for a value passed as the parameter `name` (GY-RUNTIME-090) or, if `op`
        is not empty, returned by that op (GY-RUNTIME-091)."""
        description = cls.described(value)
        if op:
            return cls.of(
                "GY-RUNTIME-091",
                f"{op} returned {description}, but its meta function says {expected}",
                where=name,
                help="correct the op's meta (fake) function, or its implementation",
            )
        return cls.of(
            "GY-RUNTIME-090",
            f"the input {name} is {description}; the program was compiled for {expected}",
            where=name,
            help="pass a tensor as it was compiled for, or compile the program for this one",
        )

    @staticmethod
    def described(value: Any) -> str:
        """Return a description of a PyTorch tensor, or of a value that is none."""
        if not hasattr(value, "untyped_storage"):
            return f"a {type(value).__name__}"
        pending = " conjugated" * value.is_conj() + " negated" * value.is_neg()
        strided = str(value.layout) == "torch.strided"
        strides = f", strides {value.stride()}" if strided else ""
        return f"{value.dtype}{pending} {tuple(value.shape)}{strides}, on {value.device}"


class NanError(GyratorError, AssertionError):
    """A buffer contains NaN or infinity while NaN checks are enabled."""

    @classmethod
    def check(cls, tensor: Any, name: str) -> None:
        """Raise (GY-RUNTIME-003) if a float or complex tensor of PyTorch contains NaN or infinity.
        Host languages share the check."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return
        wide = tensor.float() if tensor.itemsize == 1 else tensor  # 8-bit floats have no isfinite
        finite = wide.isfinite()
        if bool(finite.all()):
            return
        nans, elements = int(wide.isnan().sum()), tensor.numel()
        infinite = elements - int(finite.sum()) - nans
        raise cls.of(
            "GY-RUNTIME-003",
            f"buffer {name} holds {nans} NaN and {infinite} infinite of {elements} elements",
            help="look at the operation that produced it; the check is a compile option",
        )


class VerifyError(GyratorError):
    """The IR violates an invariant: a bug in the pass or stage that produced it."""


class VerificationError(GyratorError):
    """A compiled kernel disagrees with its IR, or the tools to compare them are missing."""


class ParseError(GyratorError):
    """The text cannot be parsed as IR."""


class UnsupportedError(GyratorError):
    """The user's model needs an unsupported feature; the caller may fall back to eager mode."""


class RefusedError(UnsupportedError):
    """Some nodes of a graph cannot be compiled; `nodes` maps their names to the reasons."""

    def __init__(self, nodes: Mapping[str, Diagnostic]) -> None:
        super().__init__(next(iter(nodes.values())))
        self.nodes = dict(nodes)
