"""Output of compiled graphs for `TORCH_LOGS` and `TORCH_TRACE`.

`TORCH_LOGS=gyrator` logs a line per graph. PyTorch's compiler artifacts (`output_code`,
`kernel_code`, `schedule`, `fusion`, `perf_hints`) are filled by Gyrator. `TORCH_TRACE=folder`
writes them, and every IR, for `tlparse`.
"""

import json
import logging
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

from torch import _logging

from gyrator.reports.records import GraphRecord

_GRAPHS = logging.getLogger("gyrator.graphs")
_torch: Any = _logging
_LOGGERS = MappingProxyType(
    {
        name: _torch.getArtifactLogger(__name__, name)
        for name in ("output_code", "kernel_code", "schedule", "fusion", "perf_hints")
    }
)


def log_graph(record: GraphRecord) -> None:
    """Log a compiled graph to the enabled logs."""
    _GRAPHS.info("%s", _line(record))
    for name, texts in _TEXTS.items():
        logger = _LOGGERS[name]
        if logger.isEnabledFor(logging.DEBUG):
            for text in texts(record):
                logger.debug("%s", text)
    trace_text(
        f"cache_{_cache_status(record)}.json", lambda: json.dumps(_lookup(record), indent=1), "json"
    )
    trace_text("graph.json", lambda: json.dumps(_summary(record), indent=1), "json")
    if record.host_text:
        trace_text("output_code", lambda: "\n".join(_output_code(record)))


def log_unmeasured(reason: str) -> None:
    """Log why a graph is not measured against eager mode."""
    _GRAPHS.info("not measured against eager mode: %s", reason)


def trace_text(name: str, text: Callable[[], str], encoding: str = "string") -> None:
    """Write a text to `TORCH_TRACE`; `text` is called only if that is enabled."""
    metadata = {"name": f"gyrator_{name}", "encoding": encoding}
    _torch.trace_structured("artifact", metadata_fn=lambda: metadata, payload_fn=text)


def _cache_status(record: GraphRecord) -> str:
    """Return the cache status for tlparse: a graph that runs eagerly bypassed the cache."""
    return "bypass" if record.fallback else "hit" if record.cached else "miss"


def _lookup(record: GraphRecord) -> dict[str, Any]:
    """Return whether a graph came from the cache, or why it did not."""
    if record.fallback:
        return {"eager": record.fallback}
    differs = None if record.cached else record.missed()
    return {"phase": record.phase, "differs from the most similar stored program in": differs}


def _line(record: GraphRecord) -> str:
    if record.fallback:
        return f"{record.phase} graph of {record.nodes} calls runs eagerly: {record.fallback}"
    how = "loaded" if record.cached else "compiled"
    seconds = sum(spent for _, spent in record.seconds)
    return (
        f"{how} {record.phase} graph of {record.nodes} calls in {seconds:.3f} s: "
        f"{len(record.kernels)} kernels, {len(record.externs)} ATen calls"
    )


def _summary(record: GraphRecord) -> dict[str, Any]:
    return {
        "phase": record.phase,
        "nodes": record.nodes,
        "cached": record.cached,
        "fallback": record.fallback,
        "seconds": dict(record.seconds),
        "passes": [
            {"level": s.level, "name": s.name, "changed": s.changed} for s in record.passes
        ],
        "launches": record.launches,
        "kernels": [
            {"name": k.name, "nodes": k.nodes, "ops": k.ops, "sources": k.sources,
             "bytes": k.bytes_moved, "refusals": k.refusals}
            for k in record.kernels
        ],
        "calls": [
            {"op": e.target, "node": e.node, "reason": e.reason, "source": e.source}
            for e in record.externs
        ],
    }  # fmt: skip


def _output_code(record: GraphRecord) -> Iterator[str]:
    yield from _kernel_code(record)
    yield record.host_text


def _kernel_code(record: GraphRecord) -> Iterator[str]:
    for k in record.kernels:
        yield f"{k.name} ({k.language}), of {', '.join(k.nodes)}:\n{k.text}"


def _schedule(record: GraphRecord) -> Iterator[str]:
    for part in record.partitions:
        label = f"graph of {part.device}" if part.device else f"no graph: {part.reason}"
        yield f"{label}: {', '.join(part.nodes)}"
    if not record.partitions:
        names = [k.name for k in record.kernels] + [e.target for e in record.externs]
        yield f"{record.launches} launches of {', '.join(names)}"


def _fusion(record: GraphRecord) -> Iterator[str]:
    for k in record.kernels:
        yield f"{k.name} computes {', '.join(k.nodes)}"
        yield from (f"{k.name} is separate: {why}" for why in k.refusals)


def _perf_hints(record: GraphRecord) -> Iterator[str]:
    for e in record.externs:
        if e.reason != "library":
            yield f"{e.target} is an ATen call: {e.reason} ({e.source})"


_TEXTS: MappingProxyType[str, Callable[[GraphRecord], Iterator[str]]] = MappingProxyType(
    {
        "output_code": _output_code,
        "kernel_code": _kernel_code,
        "schedule": _schedule,
        "fusion": _fusion,
        "perf_hints": _perf_hints,
    }
)
