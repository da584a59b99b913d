"""Compilation of modules by llvmlite's LLVM, and loading of the object code, in this process."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

_LEVELS = {"avx512": "x86-64-v4", "avx2": "x86-64-v3", "plain": "", "neon": ""}
"""LLVM's names of processors that have just an instruction set."""


class FunctionAddress(int):
    """The address of a function, whose code exists as long as this object."""

    engine: Any


def version() -> str:
    """Return the versions of llvmlite and LLVM."""
    return f"llvmlite {llvmlite.__version__} LLVM {'.'.join(map(str, llvm.llvm_version_info))}"


@cache
def _target() -> Any:
    """Initialise LLVM, and return this processor as its target."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.load_library_permanently("libm.so.6")
    return llvm.Target.from_default_triple()


def _machine(arch: str) -> Any:
    """Return a new compiler for an instruction set."""
    return _target().create_target_machine(cpu=_LEVELS[arch], opt=2, jit=True)


def compiled(text: str, arch: str) -> bytes:
    """Return the object code of a module for an instruction set: `plain`, `neon`, `avx2`, `avx512`.

    Raises:
        RuntimeError: if LLVM rejects the module.
    """
    machine = _machine(arch)
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


def loaded(code: bytes, symbols: Sequence[str]) -> Mapping[str, FunctionAddress]:
    """Load object code, and return the addresses of its functions.

    Raises:
        RuntimeError: if the code cannot be loaded, or lacks a function.
    """
    # The engine becomes the owner of both.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine("plain"))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    addresses: dict[str, FunctionAddress] = {}
    for symbol in symbols:
        address = addresses[symbol] = FunctionAddress(engine.get_function_address(symbol))
        if not address:
            raise RuntimeError(f"the object code has no function {symbol}")
        address.engine = engine
    return addresses
