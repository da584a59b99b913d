"""A folder that reproduces a failure without the model: a graph's text, and a script that runs
it."""

import tempfile
from pathlib import Path
from typing import Any

import attrs
from torch.fx import GraphModule

from gyrator.options import Options
from gyrator_lowering.fx_text import show

GRAPH, SCRIPT, MINIFIER = "fx.gy", "repro.py", "minify.py"
_IRRELEVANT = ("trace_dir", "cache", "progress", "threads")
"""Options that do not affect the compiled program."""
_TEXT = """\
\"\"\"Compile the graph in {graph} again and compare with eager mode: python {script}

Exits with 1 if they differ. `gyrator minify {graph}` minimizes the graph, `gyrator bisect
{graph}` finds the faulty stage.
\"\"\"

import sys
from pathlib import Path

from gyrator.repro.failure import find_failure

OPTIONS = {options!r}

if __name__ == "__main__":
    found = find_failure(Path(__file__).with_name("{graph}").read_text("utf-8"), OPTIONS)
    print(found)
    sys.exit(bool(found.kind))
"""

_MINIFIER = """\
\"\"\"Minimize the graph in {graph}: python {minifier}

The smallest graph that fails in the same way is written to `small`, with a script.
\"\"\"

import sys
from pathlib import Path

from gyrator.cli.main import main

OPTIONS = {options!r}

if __name__ == "__main__":
    here = Path(__file__).parent
    given = [word for text in OPTIONS for word in ("--option", text)]
    sys.exit(main(["minify", str(here), "-o", str(here / "small"), *given]))
"""


def script(options: Options) -> str:
    """Return the text of a script that runs the graph in the same folder."""
    return _TEXT.format(graph=GRAPH, script=SCRIPT, options=_chosen(options))


def _chosen(options: Options) -> dict[str, Any]:
    return {
        f.name: getattr(options, f.name)
        for f in attrs.fields(Options)
        if getattr(options, f.name) != f.default and f.name not in _IRRELEVANT
    }


def write_repro(gm: GraphModule, options: Options, folder: Path | None = None) -> Path:
    """Write a graph and its script to a folder, by default a new one; return the script's path."""
    folder = folder or Path(tempfile.mkdtemp(prefix="gyrator-repro-"))
    (folder / GRAPH).write_text(show(gm), "utf-8")
    path = folder / SCRIPT
    path.write_text(script(options), "utf-8")
    return path


def first_repro(error: str, gm: GraphModule, options: Options) -> Path:
    """Return the script of the first graph in this process that failed with an error; a script
    that minimises the graph is in the same folder."""
    if error not in _FIRST:
        path = _FIRST[error] = write_repro(gm, options)
        arguments = [f"{name}={value}" for name, value in _chosen(options).items()]
        text = _MINIFIER.format(graph=GRAPH, minifier=MINIFIER, options=arguments)
        path.with_name(MINIFIER).write_text(text, "utf-8")
    return _FIRST[error]


_FIRST: dict[str, Path] = {}
