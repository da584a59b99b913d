"""The text forms of the lines of Kernel IR outside of kernels."""

from gyrator_ir.kernel.nodes import Lifetime, Partition, Refusal, Together
from gyrator_ir.text.forms import DEVICE, INTEGER, NAME, STRING, WORD, Codec, Form, FormTable, Part
from gyrator_ir.text.scanner import show_string

_REASON = Codec(
    lambda value, _: show_string(value) if value else "",
    lambda s: "" if s.ended() else s.string(),
)
"""An optional string at the end of a line."""
_RANGE = (Part("start", INTEGER), Part("end", INTEGER, lead="to"))

FORMS = FormTable(
    (
        Form(Refusal, "refused", (Part("other", WORD), Part("reason", STRING))),
        Form(
            Lifetime,
            "life",
            (
                Part("buffer", NAME),
                Part("first", INTEGER),
                Part("last", INTEGER, lead="to"),
                Part("reuses", NAME, lead="reuses", omit=None),
            ),
        ),
        Form(
            Partition,
            "partition",
            (
                *_RANGE,
                Part("device", DEVICE, lead="on", omit=None),
                Part("reason", _REASON),
            ),
        ),
        Form(Together, "together", _RANGE),
    )
)
