"""The header-free C++ prelude of generated CPU kernels.

The files in ``headers/`` are divided into sections. A line ``//% name ... [: needed ...]`` starts a
section and lists the names that it provides. Its dependences are the identifiers in its text, plus
the names after the colon (for names formed by token pasting). `assemble` returns the smallest text
that provides the names that a kernel uses, in an order that depends only on the set of names and
the ISA.
"""

from gyrator_codegen_cpp.prelude.manifest import (
    Header,
    Isa,
    Manifest,
    Section,
    UnknownPreludeName,
    assemble,
    load_manifest,
    names_in,
)

__all__ = [
    "Header", "Isa", "Manifest", "Section", "UnknownPreludeName", "assemble", "load_manifest",
    "names_in",
]  # fmt: skip
