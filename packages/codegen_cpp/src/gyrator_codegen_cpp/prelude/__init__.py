"""The header-free C++ prelude of generated CPU kernels.

The files in ``headers/`` are divided into sections. A line ``//% name ... [: needed ...]`` opens
a section and says which names it provides; what a section needs is read off the identifiers in its
text, plus the names after the colon (for those that only token pasting makes). `assemble` returns
the smallest text that provides the names a kernel uses, in an order that depends on nothing but the
set of names and the ISA.
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
    "Header",
    "Isa",
    "Manifest",
    "Section",
    "UnknownPreludeName",
    "assemble",
    "load_manifest",
    "names_in",
]
