"""Syntax highlighting in compact HTML: a one-letter element for each kind of token."""

from functools import lru_cache

from markupsafe import Markup, escape
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, String

from gyrator.reports.lexer import GyLexer

_LEXERS = {"python": "python", "triton": "python"}
_KINDS = ((Comment, "i"), (Keyword.Type, "u"), (Keyword, "b"), (String, "s"), (Name.Function, "em"))
"""HTML elements by token kind, most specific kinds first."""


def coloured(text: str, language: str) -> Markup:
    """Return highlighted text; the page's style sheet assigns colours to the elements."""
    parts: list[tuple[str, str]] = []
    for kind, value in _lexer(language).get_tokens(text):
        element = next((e for k, e in _KINDS if kind in k), "")
        if parts and (parts[-1][0] == element or not value.strip()):
            parts[-1] = parts[-1][0], parts[-1][1] + value
        else:
            parts.append((element, value))
    html = (f"<{e}>{escape(v)}</{e}>" if e else escape(v) for e, v in parts)
    return Markup("".join(html).rstrip("\n"))


@lru_cache
def _lexer(language: str) -> Lexer:
    if language == "gy":
        return GyLexer(stripnl=False)
    lexer: Lexer = get_lexer_by_name(_LEXERS.get(language, "c++"), stripnl=False)
    return lexer
