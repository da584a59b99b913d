"""Errors of packages and their calls."""

from gyrator_ir.diagnostics import GyratorError


class PackageError(GyratorError):
    """A package cannot be loaded here, or is called with other arguments than compiled for."""


def no_package(path: object, why: str) -> PackageError:
    """Return the error for a file that is not a complete package (GY-PACKAGE-001)."""
    help = "copy the file again, or rebuild it with `gyrator.aot.compile`"
    return PackageError.of("GY-PACKAGE-001", f"{path} is not a complete package: {why}", help=help)


def newer(path: object, stored: object, supported: int) -> PackageError:
    """Return the error for a package of an unsupported format (GY-PACKAGE-002)."""
    message = f"{path} has format {stored}; this gyrator-runtime reads {supported}"
    help = "install the version of gyrator-runtime that built it, or rebuild the package"
    return PackageError.of("GY-PACKAGE-002", message, help=help)


def altered(path: object, part: str) -> PackageError:
    """Return the error for a modified package (GY-PACKAGE-003)."""
    help = "copy the file again from its source"
    return PackageError.of("GY-PACKAGE-003", f"{path} was altered: {part}", help=help)


def misfit(path: object, why: str, help: str) -> PackageError:
    """Return the error for a package for another machine or torch version (GY-PACKAGE-004)."""
    return PackageError.of("GY-PACKAGE-004", f"{path} does not fit this process: {why}", help=help)


def no_entry(name: str, entries: object) -> PackageError:
    """Return the error for a missing entry point (GY-PACKAGE-005)."""
    message = f"the package has no entry point {name!r}"
    return PackageError.of("GY-PACKAGE-005", message, help=f"there are: {entries}")


def wrong_call(entry: str, why: str, expected: str) -> PackageError:
    """Return the error for a wrong number or structure of arguments (GY-PACKAGE-006)."""
    return PackageError.of(
        "GY-PACKAGE-006", f"{entry}: {why}", help=f"it was compiled for {expected}"
    )


def wrong_input(entry: str, name: str, why: str, expected: str) -> PackageError:
    """Return the error for an argument of the wrong type, dtype, size or device
    (GY-PACKAGE-007)."""
    message = f"{entry}: the argument {name} {why}"
    return PackageError.of(
        "GY-PACKAGE-007", message, where=name, help=f"it was compiled for {expected}"
    )


def wrong_weight(
    name: str,
    why: str,
    help: str = "pass tensors with the names, sizes and dtypes that `weights` lists",
) -> PackageError:
    """Return the error for a weight that does not match (GY-PACKAGE-008)."""
    return PackageError.of("GY-PACKAGE-008", f"weight {name}: {why}", help=help)
