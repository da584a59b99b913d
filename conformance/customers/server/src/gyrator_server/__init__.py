"""An inference server's store of models: cut into parts, compiled once, loaded anywhere.

`save` cuts a model's graph, compiles every part and leaves a folder. `Served` runs a model from
such a folder in another process, where no compiler and no pass runs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.passes.split_module import split_module

from gyrator import GraphRecord, Session
from gyrator.config import read_config

__all__ = ["Served", "cut", "save"]

PROGRAMS = "programs"


def cut(model: nn.Module, parts: int) -> list[nn.Module]:
    """Cut a model that is a chain of calls into `parts` modules that are called in turn."""
    traced = torch.fx.symbolic_trace(model)
    calls = [n for n in traced.graph.nodes if n.op not in ("placeholder", "output")]
    share = -(-len(calls) // parts)
    number = {node: k // share for k, node in enumerate(calls)}
    whole: Any = split_module(traced, model, lambda node: number[node])
    return [getattr(whole, f"submod_{k}") for k in range(max(number.values()) + 1)]


def save(model: nn.Module, example: Tensor, folder: Path, parts: int = 2) -> int:
    """Compile `model` for inputs like `example` and store it; return the number of parts."""
    folder.mkdir(parents=True)
    pieces = cut(model.eval(), parts)
    value: Any = example
    with _session(folder, []) as session, torch.no_grad():
        for k, piece in enumerate(pieces):
            given = value if isinstance(value, tuple) else (value,)
            file = folder / f"part{k}.pt2"
            torch.export.save(torch.export.export(piece, given), file)
            value = _part(file, session)(*given)
    return len(pieces)


class Served:
    """A stored model, ready to answer."""

    def __init__(self, folder: Path) -> None:
        self.records: list[GraphRecord] = []
        """What was loaded; `cached` says that nothing was compiled."""
        self._session = _session(folder, self.records)
        files = sorted(folder.glob("part*.pt2"), key=lambda p: int(p.stem[4:]))
        self._parts = [_part(file, self._session) for file in files]

    def __call__(self, x: Tensor) -> Any:
        """Answer one request."""
        value: Any = x
        with torch.no_grad():
            for part in self._parts:
                value = part(*(value if isinstance(value, tuple) else (value,)))
        return value

    def compiled_anew(self) -> Sequence[GraphRecord]:
        """Return what was not found in the folder: nothing, if it fits this machine."""
        return [r for r in self.records if not r.cached]


def _part(file: Path, session: Session) -> Any:
    """Return a stored part as a callable; what was compiled of it before is found by its graph."""
    return torch.compile(torch.export.load(file).module(), backend=session.backend)


def _session(folder: Path, records: list[GraphRecord]) -> Session:
    environment: Mapping[str, str] = {"GYRATOR_CACHE_DIR": str(folder / PROGRAMS)}
    config = read_config(environment)
    return Session(config=config, options={"strict": True}, observer=records.append)
