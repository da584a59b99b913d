"""The text forms of Kernel IR: the heads of kernels, and the lines outside of kernels."""

from gyrator_ir.kernel.nodes import Kernel, Lifetime, Partition, Refusal, TemplateKernel, Together
from gyrator_ir.loop.forms import COMPUTED, GRAMMAR
from gyrator_ir.modes import Numerics
from gyrator_ir.text.forms import CODECS, Codec, FormTable, Grammar
from gyrator_ir.text.program import AXES
from gyrator_ir.text.scanner import show_string

_REASON = Codec(
    lambda value, _: show_string(value) if value else "", lambda s: "" if s.ended() else s.string()
)
"""An optional string at the end of a line."""
_NUMERICS = Codec(
    lambda value, _: "" if value is Numerics.EAGER else value.value,
    lambda s: next((n for n in Numerics if s.take(n.value)), Numerics.EAGER),
)
_GRAMMAR = Grammar({**CODECS, "reason": _REASON, "axes": AXES, "numerics": _NUMERICS})
_form = _GRAMMAR.form

FORMS = FormTable(
    (
        _form(Refusal, "refused {other:word} {reason:string}"),
        _form(Lifetime, "life {buffer} {first:integer} to {last:integer} [reuses {reuses}]"),
        _form(Partition, "partition {start:integer} to {end:integer} [on {device}] {reason}"),
        _form(Together, "together {start:integer} to {end:integer}"),
    )
)

_LAUNCH = "[overlap {overlap:names}] {origins}"
KERNEL = _GRAMMAR.parts(
    Kernel,
    f" {{name}} on {{device}} {{axes}} [inner {{inner:axes}}] [sizes {{sizes:symbols}}] "
    f"{{numerics}} {_LAUNCH}",
)
"""`k0 on cpu (i0 < 4096) inner (r0 < 1024) sizes (s0) fast overlap (p0) @0`."""
TEMPLATE = GRAMMAR.parts(
    TemplateKernel,
    f" {{name}} on {{device}} template {COMPUTED} [sizes {{sizes:symbols}}] {_LAUNCH}",
)
"""`k0 on cuda template attention (p0, p1, p2) -> (p3) with {scale=0.125} sizes (s0) @0`."""
