"""Importing brings no more than what is asked for: no compiler, no scipy, and of our own code what a layer needs."""

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import pytest

import nfn_monomial
from nfn_monomial import tools

LARGE = {"matplotlib", "pandas", "rich", "scipy", "sklearn", "sympy", "torch._dynamo", "torch._inductor"}
STEPS = """import sys
def step():
    print(*sys.modules)
import nfn_monomial; step()
import torch; step()
import nfn_monomial.testing; [getattr(nfn_monomial, name) for name in nfn_monomial.__all__]; step()
space = nfn_monomial.WeightSpace.mlp([2, 3, 1], "relu")
state = {name: torch.ones(shape) for name, shape in space.shapes().items()}
nfn_monomial.compare(space, state, state)
nfn_monomial.balance({name: t[None, None] for name, t in state.items()}, space); step()
"""


def modules_after(code: str, *arguments: str) -> list[set[str]]:
    """The names of modules in each line that a new process prints."""
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in run.stdout.splitlines()]


def test_what_is_imported_when() -> None:
    """By the name alone nothing; by all names torch; to balance and to compare no compiler."""
    name, torch, everything, working = modules_after(STEPS)
    assert "torch" not in name
    assert "nfn_monomial.models" in everything
    outside = {module.split(".")[0] for module in everything - torch - name} - set(sys.stdlib_module_names)
    assert outside <= {"nfn_monomial"}
    assert not everything & LARGE
    assert not working & {"torch._dynamo", "torch._inductor", "sympy"}


ABOVE = ("trace", "verify", "report", "from_module", "alignment", "fibre", "tools", "benchmarks")
LINES = {
    "import nfn_monomial": 300,
    "import nfn_monomial.nn, nfn_monomial.models, nfn_monomial.canonical, nfn_monomial.read": 500,
    "import nfn_monomial.space": 4_000,
    "from nfn_monomial import EquivariantLinear": 5_000,
    "import nfn_monomial.adapters.nfn": 300,
    "from nfn_monomial.adapters.nfn import MonomialLinear": 5_500,
    "from nfn_monomial.adapters.nfn import MonomialStack": 8_200,
    "import nfn_monomial.adapters.modules": 5_000,
    "from nfn_monomial.adapters.pyg import to_graph": 5_500,
    "from nfn_monomial.adapters.pyg import MonomialGNN": 7_300,
}
"""What somebody imports -> the most lines of this package that it may load."""


APART = """import os, sys, torch
for statement in sys.argv[1:]:
    if not os.fork():
        exec(statement)
        print(*sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded_by() -> dict[str, set[str]]:
    """Statement -> the modules that a process of its own has after it, and after torch, which is imported once."""
    return dict(zip(LINES, modules_after(APART, *LINES), strict=True))


@pytest.mark.parametrize("statement", LINES)
def test_a_layer_loads_no_more_than_it_needs(statement: str, loaded_by: dict[str, set[str]]) -> None:
    loaded = loaded_by[statement]
    files = {name: path_of(name) for name in loaded if name.split(".")[0] == "nfn_monomial"}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()}
    assert sum(lines.values()) <= LINES[statement], sorted(lines.items(), key=lambda entry: -entry[1])
    assert not [name for name in files if name.split(".")[1:2] and name.split(".")[1] in ABOVE]
    assert not [name for name in loaded if name.split(".")[0] == "scipy"] or "pyg" in statement
    assert not [name for name, path in files.items() if uses_export(path)]


def path_of(module: str) -> Path:
    path = importlib.import_module(module).__file__
    assert path is not None
    return Path(path)


def uses_export(path: Path) -> bool:
    """Whether a file asks for torch.export, which torch may have imported itself, other than for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if is_for_type_checkers(node):
            node.body = []
    asked = imports(tree) | {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return any(name.startswith("torch.export") for name in asked)


def imports(tree: ast.AST) -> set[str]:
    """The dotted names that a file imports, at its top or when a function is called."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


ROOMS = Path(nfn_monomial.__file__).parent


def test_the_core_is_pure_torch() -> None:
    """Nothing else is asked for, even when a function is called; comparing networks and the tools may ask for more."""
    allowed = {"torch", "nfn_monomial", *sys.stdlib_module_names}
    for path in ROOMS.rglob("*.py"):
        if path.relative_to(ROOMS).parts[0] not in {"alignment", "tools"}:
            names = imports(ast.parse(path.read_text(encoding="utf-8")))
            assert {name.split(".")[0] for name in names} <= allowed, path


def is_for_type_checkers(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


DOORS = [
    "nfn_monomial",
    "nfn_monomial.adapters.nfn",
    "nfn_monomial.adapters.pyg",
    "nfn_monomial.basis",
    "nfn_monomial.canonical",
    "nfn_monomial.models",
    "nfn_monomial.nn",
    "nfn_monomial.nn.neurons",
    "nfn_monomial.read",
    "nfn_monomial.tools",
]


@pytest.mark.parametrize("door", DOORS)
def test_a_door_shows_the_names_that_type_checkers_see(door: str) -> None:
    package = importlib.import_module(door)
    body = ast.parse(path_of(door).read_text(encoding="utf-8")).body
    (block,) = filter(is_for_type_checkers, body)
    seen = {imported.module: [a.name for a in imported.names] for imported in block.body if is_import(imported)}
    (call,) = (node.value for node in block.orelse if isinstance(node, ast.Expr))
    assert isinstance(call, ast.Call)
    shown = ast.literal_eval(call.args[1])
    assert {module: names for module, names in shown.items() if names} == seen
    names = [name for of_module in shown.values() for name in of_module]
    assert sorted(names) == sorted(package.__all__)
    assert {*names, *(module for module in shown if "." not in module)} <= set(dir(package))

    everything: dict[str, object] = {}
    exec(f"from {door} import *", everything)
    for module, of_module in shown.items():
        home = importlib.import_module(f"{door}.{module}")
        for name in of_module:
            assert everything[name] is getattr(package, name) is getattr(home, name), name
    for value in everything.values():
        if isinstance(value, type):
            assert pickle.loads(pickle.dumps(value)) is value  # noqa: S301, made here
    with pytest.raises(AttributeError, match=f"module '{door}' has no attribute 'nonsense'"):
        package.nonsense  # noqa: B018


def is_import(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom)


FIRST_THE_MODULE = """import nfn_monomial.canonical.fingerprint
from nfn_monomial.canonical import fingerprint
from nfn_monomial import canonical
print(type(fingerprint).__name__, type(canonical.fingerprint).__name__, type(canonical.phases).__name__)
"""


def test_a_function_is_not_hidden_by_its_module() -> None:
    (kinds,) = subprocess.check_output([sys.executable, "-c", FIRST_THE_MODULE], text=True).splitlines()
    assert kinds == "function function module"


def test_a_door_says_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "room_to_paint").mkdir()
    (tmp_path / "room_to_paint" / "__init__.py").write_text(
        "from nfn_monomial.doors import lazy\n"
        "lazy(__name__, {'walls': ['paint']}, missing=lambda error, name: KeyError(f'{name} needs {error.name}'))\n"
    )
    (tmp_path / "room_to_paint" / "walls.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    room = importlib.import_module("room_to_paint")
    with pytest.raises(KeyError, match=r"room_to_paint\.paint needs no_such_package"):
        room.paint  # noqa: B018


def test_packages_list_names_that_can_be_written():
    for package in (nfn_monomial, nfn_monomial.nn, tools):
        assert all(name.isidentifier() and hasattr(package, name) for name in dir(package))
