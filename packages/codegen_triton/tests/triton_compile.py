"""A process that compiles units for a GPU: reads a pickle of jobs, writes a pickle of sizes."""

import importlib.util
import pickle
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {"sm_90": GPUTarget("cuda", 90, 32), "gfx942": GPUTarget("hip", "gfx942", 64)}
TEXT = {"sm_90": "ptx", "gfx942": "amdgcn"}
UNITS = ("wgmma.mma_async", "mma.sync", "v_mfma")
"""Instructions of matrix units."""
MACHINE_CODE = {"sm_90": "cubin", "gfx942": "hsaco"}


def build(function, job, arch):
    """Return the size in bytes of the machine code."""
    values = dict(job["values"])
    blocks = {n: v for n, v in values.items() if n.endswith("BLOCK")}
    options = {n: v for n, v in values.items() if n not in blocks}
    for flag in ("enable_fp_fusion", "debug", "sanitize_overflow"):
        if flag in options:
            options[flag] = bool(options[flag])
    names = function.arg_names
    signature = dict(zip(names, job["types"], strict=False)) | dict.fromkeys(blocks, "constexpr")
    constants = {(names.index(n),): v for n, v in blocks.items()}
    for position, kind in enumerate(job["types"]):
        if kind == "1":  # an integer that is 1
            signature[names[position]], constants[position,] = "constexpr", 1
    source = ASTSource(function, signature, constexprs=constants)
    compiled = triton.compile(source, target=TARGETS[arch], options=options)
    if job["units"] and not any(word in compiled.asm[TEXT[arch]] for word in UNITS):
        raise RuntimeError("no matrix unit is used")
    if job["waits"] and "griddepcontrol.wait" not in compiled.asm[TEXT[arch]]:
        raise RuntimeError("the previous launch is not waited for")
    return len(compiled.asm[MACHINE_CODE[arch]])


def main(arch):
    """Compile every job for a target."""
    result = {}
    for job in pickle.load(sys.stdin.buffer):
        spec = importlib.util.spec_from_file_location(job["symbol"], job["path"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        key = (job["symbol"], tuple(job["types"]))
        try:
            result[key] = build(getattr(module, job["symbol"]), job, arch)
        except Exception as error:
            result[key] = f"{type(error).__name__}: {error}"
    pickle.dump(result, sys.stdout.buffer)


if __name__ == "__main__":
    main(sys.argv[1])
