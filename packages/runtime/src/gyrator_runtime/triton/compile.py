"""Compilation of one Triton kernel to machine code. Runs in worker processes without PyTorch."""

import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from attrs import asdict

from gyrator_ir.define import frozen

TEXT, CODE, FACTS = "kernel.py", "kernel.bin", "facts.json"
"""Files written by a compile: the source, the machine code, and its launch parameters."""

_FLAGS = frozenset({"enable_fp_fusion", "debug", "sanitize_overflow"})
_COMPILER = ("triton.compiler.compiler", "triton.runtime.cache")
_SCRATCH = ("global_scratch_size", "profile_scratch_size")


@frozen(kw_only=True)
class Job:
    """A compilation request."""

    text: str
    symbol: str
    arguments: tuple[tuple[str, str, int], ...]
    """(name, type, divisor) of each parameter. A divisor of 16 enables vector accesses."""
    values: tuple[tuple[str, int], ...]
    """Blocks, `num_warps`, `num_stages` and compiler flags."""
    backend: str
    """Triton's name of the device language."""
    code: str
    """Triton's name of the machine code: `cubin`, `hsaco`, or `ptx`, which drivers compile."""
    arch: str
    """`90` for `sm_90`, `gfx942`."""
    warp: int
    """Threads of a warp."""

    def as_json(self) -> str:
        """Return a line for `parse_job`."""
        return json.dumps(asdict(self), sort_keys=True)


@frozen(kw_only=True)
class Facts:
    """Launch parameters of machine code."""

    name: str
    """Name of the function."""
    threads: int
    """Threads per program."""
    shared: int
    """Bytes of dynamic shared memory."""
    waits: bool = False
    """Programs wait for the previous launch, so that one may start before that ends."""


def parse_job(line: str) -> Job:
    """Return the job in a line written by `Job.as_json`."""
    row = json.loads(line)
    arguments = tuple((str(n), str(t), int(d)) for n, t, d in row.pop("arguments"))
    values = tuple((str(n), int(v)) for n, v in row.pop("values"))
    return Job(arguments=arguments, values=values, **row)


def read_facts(data: bytes) -> Facts:
    """Return the launch parameters in a stored file."""
    return Facts(**json.loads(data))


def import_compiler() -> None:
    """Import Triton before the first job. For processes that only compile.

    Triton's cache keys contain a hash of its own files, half a gigabyte that each process would
    read before its first kernel. Each job has its own cache folder and does not need that hash.
    """
    modules = [importlib.import_module(name) for name in _COMPILER]
    importlib.import_module("triton.experimental.gluon")  # else imported by the first kernel
    for module in modules:
        if hasattr(module, "triton_key"):
            setattr(module, "triton_key", lambda: "of one job")  # noqa: B010


def compile_job(job: Job, folder: Path) -> None:
    """Write the source, the machine code and its launch parameters to `folder`.

    Exceptions of Triton propagate. RuntimeError for a kernel that needs scratch memory, which the
    launcher does not provide.
    """
    import triton

    (folder / TEXT).write_text(job.text, encoding="utf-8")
    own_cache = folder / "triton"
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(own_cache)
        compiled = _compile(job, folder / TEXT)
    shutil.rmtree(own_cache, ignore_errors=True)
    scratch = [name for name in _SCRATCH if getattr(compiled.metadata, name, 0)]
    if scratch:
        raise RuntimeError(f"kernel {job.symbol} needs {' and '.join(scratch)}")
    facts = Facts(
        name=compiled.metadata.name,
        threads=compiled.metadata.num_warps * job.warp,
        shared=compiled.metadata.shared,
        waits="griddepcontrol.wait" in compiled.asm.get("ptx", ""),
    )
    code = compiled.asm[job.code]
    (folder / CODE).write_bytes(code.encode() if isinstance(code, str) else code)
    (folder / FACTS).write_text(json.dumps(asdict(facts)))


def _compile(job: Job, path: Path) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # Not imported, because Python would write bytecode to the folder that becomes the cache entry.
    # Triton finds the source by its file name.
    names: dict[str, Any] = {"__name__": job.symbol, "__file__": str(path)}
    exec(compile(job.text, path, "exec"), names)
    function = names[job.symbol]
    values = dict(job.values)
    blocks = {n: v for n, v in values.items() if n in function.arg_names}
    options = {n: bool(v) if n in _FLAGS else v for n, v in values.items() if n not in blocks}
    signature = {name: kind for name, kind, _ in job.arguments} | dict.fromkeys(blocks, "constexpr")
    aligned = [["tt.divisibility", 16]]
    attributes = {(k,): aligned for k, (_, _, d) in enumerate(job.arguments) if d % 16 == 0}
    constants = {(function.arg_names.index(n),): v for n, v in blocks.items()}
    source = ASTSource(function, signature, constexprs=constants, attrs=attributes)
    arch: int | str = int(job.arch) if re.fullmatch(r"\d+", job.arch) else job.arch
    return triton.compile(source, target=GPUTarget(job.backend, arch, job.warp), options=options)
