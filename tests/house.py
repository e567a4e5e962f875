"""The house rules that a machine can check: each rule reads one file and yields one sentence for each breach.

Linters know style; these know this house: its sizes, which files are pure, where each library lives. A rule never
changes a file and never runs it. `tests/test_house.py` runs the rules over the checkout, and over samples that must
fail.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOMS = ("overspill", "drills", "frontdoor", "router", "workers", "discovery", "fabric")
PURE = "# Pure: no clock, no sockets, no randomness of its own."
IMPURE = {"asyncio", "socket", "grpc", "pyverbs", "cupy", "consul", "time", "random", "threading", "select", "secrets"}

FILE_LINES_MAX = 300
FUNCTION_LINES_MAX = 60
LINE_CHARS_MAX = 120

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("examples/dispatch/route_plan/insertion.py", "best_place"): "a numba kernel: one loop nest that shares its sums",
}
"""(file pattern, "file" or a function's name) of what may be longer, and a reason that a reader accepts."""

HOMES: dict[str, tuple[str, ...]] = {
    "numpy": ("*",),
    "setuptools": ("setup.py",),
    "mypyc": ("setup.py",),
    "ml_dtypes": ("examples/*",),
    "pyverbs": ("fabric/rdma/verbs.py",),
    "grpc": ("fabric/rpc_fallback/*", "frontdoor/*"),
    "grpc_health": ("fabric/rpc_fallback/*", "frontdoor/*"),
    "google": ("frontdoor/*",),
    "aiohttp": ("frontdoor/*",),
    "consul": ("discovery/consul.py",),
    "requests": ("discovery/consul.py",),
    "cupy": ("workers/backends/launched.py", "examples/dispatch/route_plan/gpu/*"),
    "pynvml": ("workers/cuda/nvml.py",),
    "onnxruntime": ("workers/backends/onnxruntime.py", "examples/dispatch/etr/*"),
    "onnx": ("examples/dispatch/etr/*",),
    "tensorrt": ("workers/backends/tensorrt.py",),
    "torch": ("workers/backends/torch.py", "examples/dispatch/etr/*"),
    "numba": ("examples/dispatch/route_plan/*",),
    "tenacity": ("router/*", "discovery/*"),
}
"""Where each third-party library may be imported: one library lives behind one file or one folder."""

OPTIONAL = {"pyverbs", "consul", "requests", "cupy", "pynvml", "onnxruntime", "tensorrt", "torch"}
"""Libraries a plain install lacks: they are imported when first needed, inside a function."""


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its path from the root of the checkout, its text, its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, path: str, text: str) -> Source:
        """Parses `text`."""
        return cls(path, text, ast.parse(text, path))

    @property
    def is_test(self) -> bool:
        """Whether it lies under tests/."""
        return self.path.startswith("tests/")


def _excepted(source: Source, name: str) -> bool:
    return any(fnmatch(source.path, pattern) and fnmatch(name, what) for pattern, what in EXCEPTIONS)


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    if not (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    ):
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def sizes(source: Source) -> Iterator[str]:
    """Files, functions (their docstrings aside) and lines stay readable at one sitting."""
    lines = source.text.splitlines()
    if len(lines) > FILE_LINES_MAX and not _excepted(source, "file"):
        yield f"{source.path} has {len(lines)} lines, {FILE_LINES_MAX} at most: split it by what it is about"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_CHARS_MAX and "://" not in line:
            yield f"{source.path}:{number} has {len(line)} characters, {LINE_CHARS_MAX} at most"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)
            if length > FUNCTION_LINES_MAX and not _excepted(source, node.name):
                yield f"{source.path}:{node.lineno} {node.name} has {length} lines, {FUNCTION_LINES_MAX} at most"


def module_docstring(source: Source) -> Iterator[str]:
    """A module says why it exists. An empty __init__.py of tests says enough."""
    if source.text.strip() and ast.get_docstring(source.tree) is None:
        yield f"{source.path} has no docstring: say why it exists, what it never does, which file comes next"


def docstring_paths(source: Source) -> Iterator[str]:
    """The files that a module docstring sends its reader to; the caller looks whether they exist."""
    yield from re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|md))`", ast.get_docstring(source.tree) or "")


def prints(source: Source) -> Iterator[str]:
    """Commands print; libraries log or return."""
    if source.path.startswith(("overspill/", "examples/", "tests/benchmarks/")):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"{source.path}:{node.lineno} prints: only commands do"


def dataclasses_are_values(source: Source) -> Iterator[str]:
    """Values are frozen and have slots; what is not a value says so: `class Pool:  # mutable: reason`."""
    lines = source.text.splitlines()
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            name = ast.unparse(call.func if call else decorator)
            if name not in {"dataclass", "dataclasses.dataclass"}:
                continue
            given = (
                {word.arg for word in call.keywords if getattr(word.value, "value", None) is True} if call else set()
            )
            if not given >= {"frozen", "slots"} and not re.search(r"# mutable: \w.{5,}", lines[node.lineno - 1]):
                yield f"{source.path}:{node.lineno} {node.name} is not frozen with slots, and no `# mutable: why` tells"


def broad_excepts(source: Source) -> Iterator[str]:
    """Whoever catches everything says why: on the line, in the comment above it, or as the first line below."""
    lines = source.text.splitlines()
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = ast.unparse(node.type) if node.type else "BaseException"
        if not re.search(r"\b(Base)?Exception\b", caught):
            continue
        around = lines[max(node.lineno - 2, 0) : node.lineno + 1]
        comments = " ".join(line.partition("#")[2] for line in around)
        if len(re.sub(r"noqa: [A-Z0-9, ]+|[^A-Za-z]", "", comments)) < 10:  # fewer letters are no reason
            yield f"{source.path}:{node.lineno} catches {caught} without a comment that says why"


def _imports(source: Source, *, typing_too: bool) -> Iterator[tuple[str, int, bool]]:
    """(top-level module, line, whether at the module's level) of each absolute import."""
    pending: list[tuple[ast.AST, bool]] = [(source.tree, True)]
    while pending:
        node, top = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0], node.lineno, top
        below: list[ast.AST] = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing_too:
            below = list(node.orelse)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        pending.extend((child, top and not inside) for child in below)


def purity(source: Source) -> Iterator[str]:
    """A file that is marked pure gets clock, randomness and input passed in. Types alone may be imported."""
    marks = [number for number, line in enumerate(source.text.splitlines(), 1) if line.startswith("# Pure")]
    if not marks:
        return
    lines = source.text.splitlines()
    docstring_end = source.tree.body[0].end_lineno or 1
    between = "".join(lines[docstring_end : marks[0] - 1]).strip()
    if lines[marks[0] - 1] != PURE or between:
        yield f"{source.path}:{marks[0]} must say `{PURE}` directly under the module docstring"
    for name, number, _ in _imports(source, typing_too=False):
        if name in IMPURE:
            yield f"{source.path}:{number} imports {name}, but the file is marked pure"


def homes(source: Source) -> Iterator[str]:
    """A third-party library is imported in its own file or folder only, and late if a plain install lacks it."""
    if source.is_test:
        return
    for name, number, top in _imports(source, typing_too=True):
        if name in sys.stdlib_module_names or name in {*ROOMS, "examples", "overspill_command"}:
            continue
        if name not in HOMES:
            yield f"{source.path}:{number} imports {name}, which has no home yet: give it one file in tests/house.py"
        elif not any(fnmatch(source.path, pattern) for pattern in HOMES[name]):
            yield f"{source.path}:{number} imports {name}, which lives in {' and '.join(HOMES[name])}"
        elif top and name in OPTIONAL:
            yield f"{source.path}:{number} imports {name} with the module: import it where it is first needed"
        if name in {"numpy", "grpc"} and fnmatch(source.path, "workers/sentinel*"):
            yield f"{source.path}:{number} imports {name}: the sentinel stays small"


def no_telemetry(source: Source) -> Iterator[str]:
    """ONNX Runtime reports to its makers from its import on, unless the environment says no before."""
    for name, number, _ in _imports(source, typing_too=False):
        if name == "onnxruntime" and "ORT_DISABLE_TELEMETRY" not in source.text and not source.is_test:
            yield f"{source.path}:{number} imports onnxruntime without setting ORT_DISABLE_TELEMETRY=1 before"


def marked_leaks(source: Source) -> Iterator[str]:
    """The way around the leak check costs a reason."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr == "leaks" and ast.unparse(node).startswith("pytest.mark."):
            line = source.text.splitlines()[node.lineno - 1]
            if not re.search(r"leaks\(\s*f?[\"']\w{3,}", line):
                yield f"{source.path}:{node.lineno} opts out of the leak check without a reason"


RULES = (
    sizes,
    module_docstring,
    prints,
    dataclasses_are_values,
    broad_excepts,
    purity,
    homes,
    no_telemetry,
    marked_leaks,
)
