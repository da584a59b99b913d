"""The lines of Kernel IR beside those of kernels, as forms: one value writes and reads each."""

from gyrator_ir.kernel.nodes import Lifetime, Partition, Refusal, Together
from gyrator_ir.text.forms import DEVICE, INTEGER, NAME, STRING, WORD, Codec, Form, FormTable, Part
from gyrator_ir.text.scanner import show_string

_REASON = Codec(
    lambda value, _: show_string(value) if value else "",
    lambda s: "" if s.ended() else s.string(),
)
"""A string that ends a line, or nothing."""
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
