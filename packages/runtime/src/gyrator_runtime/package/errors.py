"""What may be wrong with a package, or with how it is called."""

from gyrator_ir.diagnostics import GyratorError


class PackageError(GyratorError):
    """A package cannot be loaded here, or is not called as it was compiled."""


def no_package(path: object, why: str) -> PackageError:
    """Return the error of a file that is no package, or only a part of one (GY-PACKAGE-001)."""
    help = "copy the file again, or make it again with `gyrator.aot.compile`"
    return PackageError.of("GY-PACKAGE-001", f"{path} is no whole package: {why}", help=help)


def newer(path: object, found: object, known: int) -> PackageError:
    """Return the error of a package of another format (GY-PACKAGE-002)."""
    said = f"{path} has format {found}; this gyrator-runtime reads {known}"
    help = "install a gyrator-runtime of the version that made it, or make the package again"
    return PackageError.of("GY-PACKAGE-002", said, help=help)


def altered(path: object, what: str) -> PackageError:
    """Return the error of a package that is not what was written (GY-PACKAGE-003)."""
    help = "get the file again from where it was made"
    return PackageError.of("GY-PACKAGE-003", f"{path} was altered: {what}", help=help)


def misfit(path: object, why: str, help: str) -> PackageError:
    """Return the error of a package for other machines or another torch (GY-PACKAGE-004)."""
    return PackageError.of("GY-PACKAGE-004", f"{path} does not fit this process: {why}", help=help)


def no_entry(name: str, known: object) -> PackageError:
    """Return the error of an entry point that a package lacks (GY-PACKAGE-005)."""
    said = f"the package has no entry point {name!r}"
    return PackageError.of("GY-PACKAGE-005", said, help=f"there are: {known}")


def wrong_call(entry: str, why: str, expected: str) -> PackageError:
    """Return the error of arguments of another number or structure (GY-PACKAGE-006)."""
    return PackageError.of(
        "GY-PACKAGE-006", f"{entry}: {why}", help=f"it was compiled for {expected}"
    )


def wrong_input(entry: str, name: str, why: str, expected: str) -> PackageError:
    """Return the error of an argument of another type, element type, size or device
    (GY-PACKAGE-007)."""
    said = f"{entry}: the argument {name} {why}"
    return PackageError.of(
        "GY-PACKAGE-007", said, where=name, help=f"it was compiled for {expected}"
    )


def wrong_weight(name: str, why: str) -> PackageError:
    """Return the error of a weight that does not fit (GY-PACKAGE-008)."""
    help = "give tensors with the names, sizes and element types that `weights` lists"
    return PackageError.of("GY-PACKAGE-008", f"weight {name}: {why}", help=help)
