"""The text forms of the lines of Kernel IR outside of kernels."""

from gyrator_ir.kernel.nodes import Lifetime, Partition, Refusal, Together
from gyrator_ir.text.forms import CODECS, Codec, FormTable, Grammar
from gyrator_ir.text.scanner import show_string

_REASON = Codec(
    lambda value, _: show_string(value) if value else "",
    lambda s: "" if s.ended() else s.string(),
)
"""An optional string at the end of a line."""
_form = Grammar({**CODECS, "reason": _REASON}).form

FORMS = FormTable(
    (
        _form(Refusal, "refused {other:word} {reason:string}"),
        _form(Lifetime, "life {buffer} {first:integer} to {last:integer} [reuses {reuses}]"),
        _form(Partition, "partition {start:integer} to {end:integer} [on {device}] {reason}"),
        _form(Together, "together {start:integer} to {end:integer}"),
    )
)
