"""Every check we have. `nox -l` lists them; continuous integration runs these and nothing else."""

import ast
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

# Tests start processes by the hundred, and uv installs without bytecode: where Python may not keep
# what it compiled, each of them would compile torch anew, which takes seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# On a busy machine, threads of OpenMP that wait for others spin through the time these need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
USUAL_THREADS: dict[str, str | None] = {"OMP_WAIT_POLICY": None}
"""Environment of what measures speed: threads wait as those of users do."""

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "layers", "tests"]

ROOT = Path(__file__).parent
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
PROJECTS = {
    p.parent.name: tomllib.loads(p.read_text())
    for p in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
FOLDERS = {project["project"]["name"]: folder for folder, project in PROJECTS.items()}
STRANGERS = tuple(
    str(path.parent.relative_to(ROOT))
    for depth in ("", "*/", "*/*/")
    for path in sorted(ROOT.glob(f"conformance/{depth}pyproject.toml"))
)
"""What uses the packages from outside: the suite, a vendor's device, four customers."""
TEST_TOOLS = ("pytest-timeout", "pytest-xdist")
PARALLEL = ("-n", "auto")
"""How pytest distributes tests: each worker takes them in the order of the files."""
WHOLE_FILES = ("--dist", "loadfile", "--no-loadscope-reorder")
"""How it distributes many files: fixtures and caches of kernels belong to a worker."""
EVERYTHING_NAME = "everything"
EVERYTHING = (
    *(arg for folder in PROJECTS for arg in ("-e", f"packages/{folder}")),
    *(arg for folder in STRANGERS for arg in ("-e", folder)),
    "expecttest",  # torch's database of ops imports it
    "griffe",
    "halide",
    "hypothesis",
    "import-linter",
    "llvmlite",
    "mkdocs",
    "mkdocs-material",
    "mkdocstrings-python",
    "mypy",
    "nox",
    "pytest",
    "transformers",
    "triton",
    "z3-solver",
    *TEST_TOOLS,
)


# ---------------------------------------------------------------- environments


def package_locations() -> dict[str, str]:
    """Return the variables that tell pip and uv where to look for packages.

    uv does not read pip's configuration, so what it says is handed on. Where it says nothing, a
    machine without an NVIDIA driver gets the CPU-only build of torch from its own index: the
    default one would download several gigabytes of CUDA.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: dict[str, list[str]] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        if value:
            words = str(ast.literal_eval(value)).split()
            found.setdefault(key.rpartition(".")[2], []).extend(words)
    variables = {}
    if not found.keys() & {"find-links", "index-url", "extra-index-url"} and cpu_torch_is_near():
        found["extra-index-url"] = [CPU_TORCH]
        variables["PIP_EXTRA_INDEX_URL"] = CPU_TORCH
    for key, name in (("find-links", "UV_FIND_LINKS"), ("index-url", "UV_DEFAULT_INDEX")):
        if key in found:
            variables[name] = ",".join(dict.fromkeys(found[key]))
    if "extra-index-url" in found:
        variables["UV_INDEX"] = " ".join(dict.fromkeys(found["extra-index-url"]))
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return variables


def cpu_torch_is_near() -> bool:
    """Tell whether the index of CPU-only builds suits this machine and answers."""
    if sys.platform != "linux" or shutil.which("nvidia-smi"):
        return False
    try:
        with urllib.request.urlopen(f"{CPU_TORCH}/torch/", timeout=5):
            return True
    except OSError:
        return False


def fingerprint(requirements: Iterable[str]) -> str:
    """Return a hash of all that decides what `requirements` install."""
    digest = hashlib.sha256(sys.version.encode())
    for text in requirements:
        digest.update(text.encode() + b"\0")
    for path in (CONSTRAINTS, *sorted(ROOT.glob("**/pyproject.toml"))):
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def venv(
    session: nox.Session,
    name: str,
    *requirements: str,
    fresh: bool = False,
    interpreter: str = sys.executable,
    pins: tuple[str, ...] = ("-c", str(CONSTRAINTS)),
) -> str:
    """Return the Python of `.nox/<name>`, an environment that holds `requirements`.

    What an earlier run installed is kept as long as nothing that decides it has changed.
    """
    folder = ROOT / ".nox" / name
    python = folder / "bin" / "python"
    stamp, wanted = folder / "gyrator-requirements", fingerprint((interpreter, *requirements))
    if not fresh and stamp.exists() and stamp.read_text() == wanted:
        session.log(f"{folder} is up to date")
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)
    if shutil.which("uv"):
        run = ("uv", "pip", "install", "--quiet", "--python", str(python))
        session.run("uv", "venv", "--quiet", "--python", interpreter, str(folder), external=True)
        session.run(*run, *pins, *requirements, env=package_locations(), external=True)
    else:
        make = (sys.executable, "-m", "virtualenv", "--quiet", "--python", interpreter)
        session.run(*make, str(folder), external=True)
        # Modules are compiled when they are imported, which few of torch's are.
        quick = ("--quiet", "--disable-pip-version-check", "--no-compile")
        run = (str(python), "-m", "pip", "install", *quick)
        session.run(*run, *pins, *requirements, env=package_locations(), external=True)
    if name != EVERYTHING_NAME:
        link_bytecode(ROOT / ".nox" / EVERYTHING_NAME, folder)
    stamp.write_text(wanted)
    return str(python)


def link_bytecode(source: Path, folder: Path) -> None:
    """Link what Python has compiled in the environment `source` into another one.

    The first import of torch takes ten seconds otherwise, in each worker of pytest. Python compares
    time and size of each module's source, which uv keeps, and replaces what does not fit.
    """
    for cache in source.glob("lib/python*/site-packages/**/__pycache__"):
        place = folder / cache.relative_to(source)
        if place.parent.is_dir() and not place.exists():
            with contextlib.suppress(OSError):
                shutil.copytree(cache, place, copy_function=os.link)


def everything(session: nox.Session) -> str:
    """Return the Python of the one environment that holds every package and its tools."""
    return venv(session, EVERYTHING_NAME, *EVERYTHING)


def siblings(package: str) -> list[str]:
    """Return the folders of `package` and of the siblings it depends on, dependencies first."""
    project = PROJECTS[package]
    found: dict[str, None] = {}
    for line in project["project"]["dependencies"]:
        if (folder := FOLDERS.get(requirement_name(line))) is not None:
            found |= dict.fromkeys(siblings(folder))
    return [*found, package]


def requirement_name(requirement: str) -> str:
    """Return the distribution that `requirement` names, without bounds and extras."""
    for end in "<>=!~[; ":
        requirement = requirement.partition(end)[0]
    return requirement


def needs_torch(package: str) -> bool:
    """Tell whether `package` or a sibling that it depends on declares torch."""
    return any(
        requirement_name(line) == "torch"
        for folder in siblings(package)
        for line in PROJECTS[folder]["project"]["dependencies"]
    )


# ---------------------------------------------------------------- what people run


@nox.session(venv_backend="none", default=False)
def demo(session: nox.Session) -> None:
    """Compile real models, print a table and write the HTML report."""
    command = (everything(session), "-m", "gyrator.demo", *session.posargs)
    session.run(*command, env=USUAL_THREADS, external=True)


@nox.session(venv_backend="none", default=False)
def conformance(session: nox.Session) -> None:
    """Models on targets and host languages: `-- --target cpu --wrapper python,fx -k bert`."""
    python = everything(session)
    session.run(python, "-m", "gyrator_conformance", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def fuzz(session: nox.Session) -> None:
    """Random programs against eager: `-- --graphs 2000 --seed 1 --target cpu --jobs 2`."""
    python = everything(session)
    session.run(python, "-m", "gyrator_conformance.fuzz", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def opinfo(session: nox.Session) -> None:
    """Every op of torch's database against eager: `-- --shard 1/40 --jobs 2`, `-- -k amax`."""
    python = everything(session)
    session.run(python, "-m", "gyrator_conformance.opinfo", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def families(session: nox.Session) -> None:
    """Small models of published families against eager: `-- --only bert,mamba --jobs 2`."""
    python = everything(session)
    session.run(python, "-m", "gyrator_conformance.families", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def verify(session: nox.Session) -> None:
    """Every kernel of a set of models beside the interpreter of its IR; `-- -k norm` chooses."""
    python = everything(session)
    chosen = session.posargs or ("--wrapper", "python", "--dtypes", "float32,bfloat16")
    session.run(python, "-m", "gyrator_conformance", "--verify", *chosen, external=True)


@nox.session(venv_backend="none", default=False)
def halide(session: nox.Session) -> None:
    """Halide's kernels at length: random ones, the whole op table, and the models; `-- -k norm`."""
    python = everything(session)
    tests = ("packages/codegen_halide/tests", "--halide-kernels", "40", "--timeout", "1800")
    session.run(python, "-m", "pytest", *PARALLEL, *tests, external=True)
    session.run(
        python, "-m", "gyrator_conformance", "--target", "halide", *session.posargs,
        env={"GYRATOR_TARGETS": "halide"}, external=True,
    )  # fmt: skip


@nox.session(default=False)
def compiler(session: nox.Session) -> None:
    """The op tests by the clang of the extra `compiler`, on a path without a compiler."""
    python = everything(session)
    place = Path(session.create_tmp())
    session.install("--upgrade", "--target", str(place / "packages"), "ziglang>=0.16")
    path = place / "path"
    path.mkdir(exist_ok=True)
    for program in filter(None, map(shutil.which, ("env", "sh", "uname"))):
        link = path / Path(program).name
        link.unlink(missing_ok=True)
        link.symlink_to(program)
    tests = session.posargs or ("packages/gyrator/tests/test_ops.py",)
    env = {"PATH": str(path), "CXX": "", "PYTHONPATH": str(place / "packages")}
    session.run(python, "-m", "pytest", *PARALLEL, *tests, env=env, external=True)


@nox.session(venv_backend="none", default=False)
def neon(session: nox.Session) -> None:
    """Kernels and packages for aarch64, natively or under qemu; `-- -k gelu` chooses."""
    python = everything(session)
    asked = (
        "from gyrator_testing.kernels.built import lacking; raise SystemExit(lacking('neon') or 0)"
    )
    session.run(python, "-c", asked, external=True)
    paths = ("packages/codegen_cpp/tests", "conformance/tests/test_neon.py")
    chosen = session.posargs or ["-k", "neon"]
    session.run(python, "-m", "pytest", *paths, *chosen, external=True)


@nox.session(venv_backend="none", default=False)
def prove(session: nox.Session) -> None:
    """The rewrites of expressions, proved for all integers: a table, and what no proof reaches."""
    python = everything(session)
    with session.chdir("packages/ir/tests"):
        session.run(python, "-m", "proofs", external=True)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """`nox -s bench -- cpu`: run bench/cpu.py; what follows the name goes to it."""
    names = sorted(path.stem for path in ROOT.glob("bench/*.py") if path.stem[0] != "_")
    name, *rest = session.posargs or [""]
    name = name.replace("-", "_")
    if name not in names:
        session.error(f"say which benchmark: nox -s bench -- {{{','.join(names)}}}")
    peers = name == "cpu_peers"
    python = venv(session, "peers", *EVERYTHING, *RUNTIMES) if peers else everything(session)
    session.run(python, f"bench/{name}.py", *rest, env=USUAL_THREADS, external=True)


@nox.session(venv_backend="none", default=False)
def bench_tests(session: nox.Session) -> None:
    """The benchmarks still run: on little, with few rounds, beside the other compilers."""
    python = everything(session)
    session.run(python, "-m", "pytest", "bench/tests", *session.posargs, external=True)


RUNTIMES = ("onnx", "onnxruntime", "onnxscript", "openvino", "torchao")
"""What `bench/cpu_peers.py` compares with, and what quantises its models."""


# ---------------------------------------------------------------- checks


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """All suites in one environment; arguments after `--` go to pytest."""
    python = everything(session)
    chosen = session.posargs or WHOLE_FILES
    session.run(python, "-m", "pytest", *PARALLEL, *chosen, external=True)


@nox.session(venv_backend="none", default=False)
def long(session: nox.Session) -> None:
    """What `tests` samples or leaves out: growth of compile times, planted bugs, large models."""
    python = everything(session)
    session.run(python, "-m", "pytest", *PARALLEL, "-m", "long", *session.posargs, external=True)


IMPORT_EVERYTHING = {
    "codegen": ("test_lanes.py", "test_unrolling.py", "test_value_ranges.py", "test_writer.py"),
    "codegen_cpp": ("test_flex_attention.py", "test_group.py", "test_refusals.py"),
    "codegen_halide": ("test_halide_emit.py",),
    "codegen_llvm": ("test_llvm_emit.py",),
    "codegen_metal": ("test_metal_emit.py",),
    "codegen_triton": ("test_triton_emit.py", "test_triton_readme.py"),
    "gyrator": ("test_codes.py", "test_explain.py", "test_keys.py", "test_opt.py"),
    "ir": ("test_codes.py", "test_passes.py", "test_readme.py", "test_roundtrip.py"),
    "lowering": ("test_codes.py", "test_foreach.py", "test_fx_text.py", "test_passes.py"),
    "runtime": ("test_host.py", "test_lower.py", "test_readme.py", "test_triton.py"),
    "scheduler": ("filetests", "test_host.py", "test_partitions.py"),
    "testing": ("test_filetest.py", "test_levels.py", "test_readme.py", "test_search.py"),
    "wrapper_cpp": ("filetests", "test_readme.py", "test_text.py"),
    "wrapper_fx": ("filetests", "test_instructions.py", "test_readme.py"),
}  # fmt: skip
"""Files that stand for a long suite in an environment of its own, where all that they can find is a
dependency that is not declared; `tests` runs the whole suite."""


@nox.session(venv_backend="none", default=False)
@nox.parametrize("package", list(PROJECTS), ids=list(PROJECTS))
def isolated(session: nox.Session, package: str) -> None:
    """One package's tests, and the example of its README, with only what it declares."""
    group = PROJECTS[package].get("dependency-groups", {}).get("test", [])
    folders = dict.fromkeys(siblings(package))
    for line in group:
        if (folder := FOLDERS.get(requirement_name(line))) is not None:
            folders |= dict.fromkeys(siblings(folder))
    editable = [arg for folder in folders for arg in ("-e", f"packages/{folder}")]
    outside = [line for line in group if requirement_name(line) not in FOLDERS]
    python = venv(session, f"isolated-{package}", *editable, *outside, *TEST_TOOLS)
    if not needs_torch(package):
        declared = {requirement_name(line) for line in outside}
        absent = [name for name in ("torch", "triton") if name not in declared]
        session.run(python, "ci/check_absent.py", *absent, external=True)
    files = [f"packages/{package}/tests/{name}" for name in IMPORT_EVERYTHING.get(package, ("",))]
    # pytest answers 5 when it collects nothing: a package without tests is a failure
    session.run(python, "-m", "pytest", *files, *session.posargs, external=True)
    readme = f"packages/{package}/README.md"
    session.run(python, "ci/run_doc_examples.py", readme, external=True)


ENDS = {"2.11": "3.11", "2.15": "3.13"}
"""The oldest and the newest PyTorch that are supported, each with a Python of its time."""
ENDS_FILES = (
    "packages/gyrator/tests/test_autograd.py",
    "packages/gyrator/tests/test_libtorch_packages.py",
    "packages/gyrator/tests/test_logs.py",
    "packages/gyrator/tests/test_numbers.py",
    "packages/gyrator/tests/test_pieces.py",
    "packages/gyrator/tests/test_recurrent.py",
    "packages/gyrator/tests/test_semantics.py",
    "packages/gyrator/tests/test_subclasses.py",
)
"""What touches PyTorch in most places: tracing, AOTAutograd, higher-order ops, decompositions,
guards, logs, libtorch's C ABI."""


@nox.session(venv_backend="none", default=False)
@nox.parametrize("torch", list(ENDS), ids=list(ENDS))
def ends(session: nox.Session, torch: str) -> None:
    """A part of the umbrella's tests with the oldest and the newest PyTorch and Python.

    Where the index of CPU-only builds is out of reach, PyPI's for GPUs take 5 GB each.
    """
    names = [project["project"]["name"] for project in PROJECTS.values()]
    editable = [arg for folder in PROJECTS for arg in ("-e", f"packages/{folder}")]
    group = PROJECTS["gyrator"]["dependency-groups"]["test"]
    tools = [t for t in group if requirement_name(t) not in (*names, "transformers", "triton")]
    python = venv(
        session, f"ends-{torch}", *editable, f"torch=={torch}.*", *tools, *TEST_TOOLS,
        interpreter=_interpreter(session, ENDS[torch]), pins=(),
    )  # fmt: skip
    command = (python, "-m", "pytest", *PARALLEL, *ENDS_FILES, *session.posargs)
    session.run(*command, external=True)
    # A library and packages that are made by the usual version, loaded with this one.
    where = "import pathlib, torch; print(pathlib.Path(torch.__file__).with_name('lib'))"
    libtorch = str(session.run(python, "-c", where, silent=True, external=True)).strip()
    one = ("packages/gyrator/tests/test_libtorch_packages.py", "-k", "in_c or kept")
    usual = (everything(session), "-m", "pytest", "-n", "0", *one, "--libtorch", libtorch)
    session.run(*usual, external=True)


def _interpreter(session: nox.Session, version: str) -> str:
    """Return a Python of a version, from pyenv's or the path."""
    folders = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin"))
    path = os.pathsep.join((*map(str, folders), os.environ["PATH"]))
    found = shutil.which(f"python{version}", path=path)
    if found is None:
        session.error(f"there is no python{version}")
    return found


@nox.session(venv_backend="none", default=False)
def wrappers(session: nox.Session) -> None:
    """The umbrella's tests of models and semantics, with host programs in C++ and as FX graphs."""
    python = everything(session)
    files = [f"packages/gyrator/tests/{name}.py" for name in ("test_semantics", "test_ops")]
    for wrapper in ("cpp", "fx"):
        arguments = (*files, *PARALLEL, "--wrapper", wrapper, *session.posargs)
        session.run(python, "-m", "pytest", *arguments, external=True)


@nox.session(venv_backend="none", default=False)
def leaks(session: nox.Session) -> None:
    """Memory of C++ host programs: LeakSanitizer, and 10,000 calls of each kind on libtorch."""
    python = everything(session)
    double = ("packages/wrapper_cpp/tests/test_run.py", "-k", "leak")
    session.run(python, "-m", "pytest", "-n", "0", *double, external=True)
    real = ("packages/gyrator/tests/test_host_languages.py", "-k", "leave_nothing")
    session.run(
        python, "-m", "pytest", "-n", "0", *real, "--calls", "10000", "--timeout", "1800",
        *session.posargs, external=True,
    )  # fmt: skip


@nox.session
def lint(session: nox.Session) -> None:
    """Style and format by ruff (`-- --fix` mends them); no unused declarations, nothing oversized,
    no vague names."""
    session.install("-c", str(CONSTRAINTS), "ruff", env=package_locations())
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    session.run("python", "ci/check_unused.py")
    session.run("python", "ci/check_sizes.py")
    session.run("python", "ci/check_names.py")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """All packages under mypy --strict, and those that use them from outside."""
    sources = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
    sources += [str(ROOT / folder / "src") for folder in STRANGERS]
    python = everything(session)
    session.run(python, "-m", "mypy", *(session.posargs or sources), external=True)


@nox.session(venv_backend="none")
def layers(session: nox.Session) -> None:
    """Imports go one way, devices are named only where they may be, public names are as listed."""
    python = everything(session)
    for check in ("distributions", "check_layers", "public_api"):
        session.run(python, f"ci/{check}.py", external=True)


@nox.session(default=False)
def journeys(session: nox.Session) -> None:
    """A vendor, a compiler engineer and a researcher do their work with wheels alone.

    Pictures of the report and of the manual are kept in `.nox/journeys-shots`.
    """
    session.install("-c", str(CONSTRAINTS), "hatchling", env=package_locations())
    dist = ROOT / ".nox" / "journeys-dist"
    shutil.rmtree(dist, ignore_errors=True)
    for folder in (*(f"packages/{name}" for name in PROJECTS), *JOURNEYS):
        with session.chdir(ROOT / folder):
            session.run("hatchling", "build", "-t", "wheel", "-d", str(dist), silent=True)
    wheels = sorted(str(path) for path in dist.glob("*.whl"))
    site = ("expecttest", "mkdocs", "mkdocs-material", "mkdocstrings-python")
    tools = (
        "copier", "editables", "hatchling", "pip", "playwright", "tlparse", *site, *TEST_TOOLS,
    )  # fmt: skip
    python = venv(session, "wheels-journeys", *wheels, *tools, fresh=True)
    with session.chdir(session.create_tmp()):
        script = str(ROOT / "ci" / "journeys.py")
        # what the path would add to the wheels is not what users have
        session.run(python, "-P", script, *session.posargs, env={"PYTHONPATH": None}, external=True)


JOURNEYS = ("conformance", "conformance/vendor")
"""Distributions that the journeys install beside the packages."""


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Wheels of all packages, installed into fresh environments and tried there."""
    session.install("-c", str(CONSTRAINTS), "hatchling", env=package_locations())
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for folder in PROJECTS:
        with session.chdir(f"packages/{folder}"):
            session.run("hatchling", "build", "-t", "wheel", "-d", str(dist), silent=True)
    session.run("python", "ci/check_wheels.py", str(dist))

    # wheels by path, each one: an index of the same versions may be remembered from another build
    wheels = sorted(str(path) for path in dist.glob("*.whl"))
    alone = [path for path in wheels if Path(path).name.startswith("gyrator_ir-")]
    ir = venv(session, "wheels-ir", *alone, fresh=True)
    whole = venv(session, "wheels-gyrator", *wheels, fresh=True)
    scripts = ROOT / "ci"
    with session.chdir(session.create_tmp()):
        session.run(ir, "-P", str(scripts / "check_absent.py"), "torch", "triton", external=True)
        session.run(ir, "-P", str(scripts / "smoke_ir.py"), external=True)
        session.run(whole, "-P", str(scripts / "smoke_compile.py"), external=True)


@nox.session(venv_backend="none", default=False)
def docs(session: nox.Session) -> None:
    """The manual, warnings being errors, and its examples; those of packages run in `isolated`."""
    python = everything(session)
    pages = [str(p.relative_to(ROOT)) for p in sorted(ROOT.glob("docs/**/*.md"))]
    chosen = session.posargs or ["README.md", *pages]
    with ThreadPoolExecutor(1) as pool:  # the manual takes one core for a minute
        manual = pool.submit(
            session.run, python, "-m", "mkdocs", "build", "--strict", external=True
        )
        session.run(python, "ci/run_doc_examples.py", *chosen, external=True)
        manual.result()
