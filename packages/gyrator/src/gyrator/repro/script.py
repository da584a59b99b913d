"""A folder that shows a failure without the model: a graph's text, and a script that runs it."""

import tempfile
from pathlib import Path
from typing import Any

import attrs
from torch.fx import GraphModule

from gyrator.options import Options
from gyrator_lowering.fx_text import show

GRAPH, SCRIPT, MINIFIER = "fx.gy", "repro.py", "minify.py"
_PLACES = ("trace_dir", "cache", "progress", "threads")
"""Options that say nothing of what is compiled."""
_TEXT = """\
\"\"\"Compile the graph in {graph} again and compare with eager mode: python {script}

Exits with 1 where they differ. `gyrator minify {graph}` makes the graph small, `gyrator bisect
{graph}` names the stage.
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
\"\"\"Make the graph in {graph} as small as can be: python {minifier}

What fails alike with the fewest calls is left in `small`, with a script that shows it.
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
    """Return the text of a script that runs the graph beside it."""
    return _TEXT.format(graph=GRAPH, script=SCRIPT, options=_chosen(options))


def _chosen(options: Options) -> dict[str, Any]:
    return {
        f.name: getattr(options, f.name)
        for f in attrs.fields(Options)
        if getattr(options, f.name) != f.default and f.name not in _PLACES
    }


def write_repro(gm: GraphModule, options: Options, folder: Path | None = None) -> Path:
    """Write a graph and its script into a folder, by default a new one; return the script."""
    folder = folder or Path(tempfile.mkdtemp(prefix="gyrator-repro-"))
    (folder / GRAPH).write_text(show(gm), "utf-8")
    path = folder / SCRIPT
    path.write_text(script(options), "utf-8")
    return path


def first_repro(error: str, gm: GraphModule, options: Options) -> Path:
    """Return the script of the first graph of this process that failed with an error; beside it
    lies one that makes the graph small."""
    if error not in _FIRST:
        path = _FIRST[error] = write_repro(gm, options)
        given = [f"{name}={value}" for name, value in _chosen(options).items()]
        text = _MINIFIER.format(graph=GRAPH, minifier=MINIFIER, options=given)
        path.with_name(MINIFIER).write_text(text, "utf-8")
    return _FIRST[error]


_FIRST: dict[str, Path] = {}
