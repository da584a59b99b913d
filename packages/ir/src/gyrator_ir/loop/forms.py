"""The text forms of the one-line operations of Loop IR and Kernel IR."""

from gyrator_ir.loop.nodes import (
    AssertCond,
    CallOp,
    CollectiveCall,
    CollectiveWait,
    CondOp,
    DeviceCopy,
    Extern,
    RepeatOp,
    ScalarRead,
    TemplateKind,
    UserTritonKernel,
    WhileOp,
)
from gyrator_ir.text.forms import (
    COND,
    EXPR,
    NAME,
    NAMES,
    ORIGINS,
    STRING,
    SYMBOL,
    WORD,
    WORDS,
    Codec,
    Form,
    FormTable,
    Part,
    flag,
)
from gyrator_ir.text.scanner import Scanner
from gyrator_ir.text.values import ARG, ARG_OR_COND, ARGS, ARGS_BY_NAME, GRID, RESULTS

_NAME = Part("name", NAME)
_ORIGINS = Part("origins", ORIGINS)
_RESULTS = Part("results", NAMES, lead="->", omit=())
_MUTATES = Part("mutates", NAMES, lead="mutates", omit=())

CALLS = FormTable(
    (
        Form(
            Extern,
            "extern",
            (
                _NAME,
                Part("target", WORD),
                Part("args", ARGS),
                Part("kwargs", ARGS_BY_NAME, lead="with", omit=()),
                Part("results", RESULTS, lead="->", omit=()),
                Part("out", WORD, lead="out", omit=None),
                Part("out_names", WORDS, lead="names", omit=()),
                _MUTATES,
                Part("reason", STRING, lead="because", omit=""),
                Part("uncaptured", STRING, lead="uncaptured", omit=""),
                _ORIGINS,
            ),
        ),
        Form(
            UserTritonKernel,
            "triton",
            (
                _NAME,
                Part("kernel", WORD),
                Part("grid", GRID, lead="grid"),
                Part("args", ARGS_BY_NAME),
                Part("constants", ARGS_BY_NAME, lead="constants"),
                _MUTATES,
                Part("descriptors", ARGS_BY_NAME, lead="descriptors", omit=()),
                _ORIGINS,
            ),
        ),
        Form(
            CollectiveCall,
            "collective",
            (_NAME, Part("target", WORD), Part("args", ARGS), _RESULTS, _MUTATES, _ORIGINS),
        ),
        Form(CollectiveWait, "wait", (_NAME, Part("buffer", NAME), _ORIGINS)),
        Form(
            DeviceCopy,
            "copy",
            (
                _NAME,
                Part("source", ARG),
                Part("destination", NAME, lead="->"),
                flag("non_blocking", "non_blocking"),
                _ORIGINS,
            ),
        ),
        Form(
            ScalarRead,
            "read",
            (_NAME, Part("source", ARG), Part("symbol", SYMBOL, lead="->"), _ORIGINS),
        ),
        Form(
            AssertCond,
            "assert",
            (_NAME, Part("condition", COND), Part("message", STRING), _ORIGINS),
        ),
        Form(
            CondOp,
            "cond",
            (
                _NAME,
                Part("predicate", ARG_OR_COND),
                Part("then", WORD, lead="then"),
                Part("otherwise", WORD, lead="else"),
                Part("operands", ARGS),
                _RESULTS,
                _ORIGINS,
            ),
        ),
        Form(
            WhileOp,
            "while",
            (
                _NAME,
                Part("condition", WORD),
                Part("body", WORD, lead="do"),
                Part("carried", ARGS),
                Part("invariants", ARGS, lead="invariants", omit=()),
                flag("stacked", "stacked"),
                _RESULTS,
                _ORIGINS,
            ),
        ),
        Form(
            RepeatOp,
            "repeat",
            (
                _NAME,
                Part("count", EXPR),
                Part("body", WORD, lead="do"),
                Part("carried", ARGS),
                Part("operands", ARGS, lead="with", omit=()),
                _RESULTS,
                Part("stacks", NAMES, lead="stacks", omit=()),
                _ORIGINS,
            ),
        ),
        Form(
            CallOp,
            "call",
            (_NAME, Part("program", WORD), Part("operands", ARGS), _RESULTS, _ORIGINS),
        ),
    )
)


def _read_kind(scanner: Scanner) -> TemplateKind:
    word = scanner.name()
    if word not in TemplateKind.__members__.values():
        scanner.line.fail(f"expected a template ({', '.join(TemplateKind)}), got {word!r}")
    return TemplateKind(word)


TEMPLATE_PARTS = (
    Part("kind", Codec(lambda kind, _: kind.value, _read_kind)),
    Part("inputs", ARGS),
    Part("outputs", ARGS, lead="->"),
    Part("attributes", ARGS_BY_NAME, lead="with", omit=()),
)
"""The parts that describe the computation of a `Template` or a `TemplateKernel`."""

TEMPLATE = (_NAME, *TEMPLATE_PARTS, _ORIGINS)
"""The head line of a `Template`; its fallback follows on a line of its own."""
