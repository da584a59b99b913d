"""A Pygments lexer for the text of all levels: `.gy` files."""

from typing import ClassVar

from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from gyrator_ir.types import DType

_HEADS = ("fx.graph", "loop.program", "kernel.schedule", "host.program", "tile.program")
_WORDS = (
    "allocate", "and", "as", "at", "below", "bind", "branch", "buffer", "conform", "const",
    "constant", "do", "extern", "fact", "free", "in", "index", "inner", "kernel", "launch", "load",
    "local", "mend", "note", "offset", "on", "origin", "out", "outer", "over", "parameter", "place",
    "pointwise", "pool", "reduction", "refused", "return", "reuse", "scan", "size", "sizes",
    "store", "strides", "to", "view", "where", "with", "wrap",
)  # fmt: skip


class GyLexer(RegexLexer):
    """Highlights keywords, dtypes, ops, names and numbers."""

    name = "Gyrator IR"
    aliases: ClassVar = ["gy", "gyrator"]
    filenames: ClassVar = ["*.gy"]
    tokens: ClassVar = {
        "root": [
            (r"\s+", Text.Whitespace),
            (r"//.*$|;.*$", Comment.Single),
            (r'"(?:\\.|[^"\\])*"', String.Double),
            (words(_HEADS, suffix=r"\b"), Keyword.Namespace),
            (words(tuple(map(str, DType)), suffix=r"\b"), Keyword.Type),
            (words(_WORDS, suffix=r"\b"), Keyword),
            (r"(?:aten|prims|gyrator|reduce|scan)\.[\w.:]+", Name.Function),
            (r"@\w+|%[\w.]+", Name.Label),
            (r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e[+-]?\d+", Number.Float),
            (r"\d+", Number.Integer),
            (r"[A-Za-z_]\w*", Name),
            (r"->|<=|[-+*/%=<>!]", Operator),
            (r"[\[\](){},:.@&|?~^]", Punctuation),
            (r".", Text),
        ]
    }
