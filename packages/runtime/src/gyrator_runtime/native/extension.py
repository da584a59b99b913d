"""Python extension modules of one C++ file, compiled at first use and cached.

The cache key consists of the source, Python's ABI and the flags, but not the compiler, so that a
process without a compiler finds the module, too.
"""

import importlib.machinery
import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

from gyrator_ir.define import frozen
from gyrator_runtime.cache import Cache, CacheKey, Entry, make_key
from gyrator_runtime.library import SharedLibrary, load_or_copy
from gyrator_runtime.process import run_limited
from gyrator_runtime.toolchain import Toolchain, stand_in_command

_FLAGS = ("-O1", "-std=c++17", "-nostdinc++", "-fvisibility=hidden", "-shared", "-fPIC")
_STAND_IN = "needed{}.so"
_SECONDS = 300.0


@frozen
class Extension:
    """An extension module built from one C++ file, which may include C headers."""

    name: str
    source: bytes
    """The source after extension.h, which includes Python.h."""
    needs: str = ""
    """SONAME of a loaded library whose functions it calls."""

    @property
    def text(self) -> bytes:
        """The complete source."""
        folder = Path(__file__).parent
        common = ((folder / name).read_bytes() for name in ("forks.h", "extension.h"))
        return b"".join((*common, self.source))

    @property
    def file(self) -> str:
        """File name of the module."""
        return f"{self.name}{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"

    def key(self) -> CacheKey:
        """Return the cache key of the built module."""
        fields = {
            "source": self.text,
            "abi": f"{self.file} {sysconfig.get_config_var('SOABI')}".encode(),
            "flags": " ".join((*_FLAGS, self.needs)).encode(),
        }
        return make_key("runner", fields)

    def find(self, cache: Cache) -> ModuleType | None:
        """Return the module if it is cached. One that does not load is discarded."""
        key = self.key()
        entry = cache.get(key)
        if entry is None:
            return None
        try:
            return self.imported(entry.file(self.file))
        except ImportError as error:
            cache.discard(key, str(error))
            return None

    def build(self, cache: Cache, toolchain: Toolchain) -> ModuleType:
        """Return the module, compiled if it is not cached.

        Raises:
            OSError, subprocess.SubprocessError: when it does not build.
            ImportError: when it does not load.
        """
        if (module := self.find(cache)) is not None:
            return module
        return self.imported(self.built(cache, toolchain).file(self.file))

    def built(self, cache: Cache, toolchain: Toolchain) -> Entry:
        """Return the cache entry of the module, compiled if it is not cached.

        Raises:
            OSError, subprocess.SubprocessError: when it does not build.
        """
        include = Path(sysconfig.get_path("include"))
        if not (include / "Python.h").exists():
            raise FileNotFoundError(f"no Python.h in {include}")

        def write(folder: Path) -> None:
            flags = (*_FLAGS, *toolchain.module_flags, f"-I{include}")
            words = (*toolchain.command, *flags, "-o", self.file, "-x", "c++", "-")
            needs = (*([self.needs] if self.needs else []), *toolchain.module_needs)
            files = [_STAND_IN.format(number) for number in range(len(needs))]
            for soname, file in zip(needs, files, strict=True):
                run_limited(stand_in_command(toolchain, soname, file), _SECONDS, folder, lines=1)
            if files:
                words += ("-x", "none", "-Wl,--no-as-needed", *files)
            run_limited(words, _SECONDS, folder, self.text, lines=1)
            for file in files:
                (folder / file).unlink(missing_ok=True)
            try:
                SharedLibrary(folder / self.file).address(f"PyInit_{self.name}")
            except OSError as error:
                raise subprocess.SubprocessError(str(error)) from error

        return cache.get_or_build(self.key(), write)

    def imported(self, path: Path) -> ModuleType:
        """Import a built file as a module. ImportError if it does not load."""
        return load_or_copy(path, lambda file: _imported(self.name, file))


def _imported(name: str, path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"no import spec for {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
