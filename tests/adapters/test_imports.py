"""Code that a user names: which modules its imports find, in files, packages and the working directory."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nfn_monomial.adapters.definitions import read_definition
from nfn_monomial.adapters.imports import DefinitionError, arguments_of, called, importing, named

NET = """
import torch
from torch import nn
{imports}

class Net(nn.Module):
    def __init__(self, width={width}):
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x):
        {lazy}
        return self.last(torch.relu(self.first(x)))

def example_inputs():
    return torch.randn(5, 3)
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def net(path: Path, imports: str = "", width: str = "4", lazy: str = "") -> Path:
    return write(path, NET.format(imports=imports, width=width, lazy=lazy))


def width_of(text: str, **more: Any) -> int:
    return read_definition(text, **more).shapes["first.weight"][0]


def test_modules_beside_a_file_are_found_and_kept_apart(tmp_path: Path) -> None:
    before = list(sys.path)
    paths = []
    for number in (3, 4):
        folder = tmp_path / str(number)
        write(folder / "layers.py", f"import parts\nWIDTH = parts.WIDTH + {number}")
        write(folder / "parts" / "__init__.py", "from .numbers import WIDTH")
        write(folder / "parts" / "numbers.py", f"WIDTH = {10 * number}")
        write(folder / "late.py", f"NUMBER = {number}")
        write(folder / "random.py", "raise AssertionError('it stands in for a module of Python')")
        lazy = f"import late; assert late.NUMBER == {number}"
        paths.append(net(folder / "net.py", "import random, layers", "layers.WIDTH", lazy))
    first, second = (read_definition(f"{path}:Net") for path in paths)
    assert [d.shapes["first.weight"][0] for d in (first, second)] == [33, 44]
    assert [d.template().first.out_features for d in (first, second)] == [33, 44]
    assert [named(f"{path}:Net")[0].layers.WIDTH for path in paths] == [33, 44]
    assert sys.path == before


def test_imports_at_work_are_those_of_the_file_that_is_called(tmp_path: Path) -> None:
    for number in (5, 6):
        write(tmp_path / str(number) / "helping.py", f"WIDTH = {number}")
        net(tmp_path / str(number) / "net.py", width="None").write_text(
            "from torch import nn, randn\n\ndef make():\n    import helping\n    return nn.Sequential("
            "nn.Linear(3, helping.WIDTH), nn.ReLU(), nn.Linear(helping.WIDTH, 2)), randn(4, 3)\n",
            encoding="utf-8",
        )
    made = [read_definition(f"{tmp_path / str(number) / 'net.py'}:make") for number in (5, 6)]
    for _ in range(2):
        assert [len(d.template().get_submodule("0").weight) for d in made] == [5, 6]


@pytest.mark.parametrize("marked", [True, False])
def test_relative_imports_find_the_package(marked: bool, tmp_path: Path) -> None:
    folder = "code" if marked else "networks_here"  # the name of a module of Python; a folder without __init__.py
    for number in (7, 8):
        root = tmp_path / str(number) / folder
        write(root / "blocks.py", f"WIDTH = {number}")
        write(root / "deep" / "sizes.py", "from ..blocks import WIDTH")
        net(root / "deep" / "net.py", "from .sizes import WIDTH\nfrom ..blocks import WIDTH as SAME", "WIDTH")
        if marked:
            write(root / "__init__.py", "")
            write(root / "deep" / "__init__.py", "from .net import Net")
    files = [tmp_path / str(number) / folder / "deep" for number in (7, 8)]
    assert [width_of(f"{file / 'net.py'}:Net") for file in files] == [7, 8]
    if marked:
        assert width_of(f"{files[1] / '__init__.py'}:Net", input_shape=(3,)) == 8
    assert hasattr(importlib.import_module("code"), "InteractiveConsole")


def test_a_file_of_a_package_may_name_the_package(tmp_path: Path) -> None:
    write(tmp_path / "own_package" / "__init__.py", "")
    write(tmp_path / "own_package" / "torch.py", "raise AssertionError('it stands in for what is installed')")
    write(tmp_path / "own_package" / "blocks.py", "WIDTH = 9")
    path = net(
        tmp_path / "own_package" / "net.py", "from own_package.blocks import WIDTH\nimport blocks", "blocks.WIDTH"
    )
    assert width_of(f"{path}:Net") == 9


def test_the_working_directory_is_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "project_here" / "sizes.py", "WIDTH = 6")
    write(tmp_path / "safetensors.py", "raise AssertionError('it stands in for what is installed')")
    net(tmp_path / "project_here" / "net.py", "import safetensors\nfrom project_here.sizes import WIDTH", "WIDTH")
    net(tmp_path / "scripts" / "net.py", "from project_here.sizes import WIDTH", "2 * WIDTH")
    assert width_of("project_here.net:Net") == 6
    assert width_of("project_here/net.py:Net") == 6
    assert width_of("scripts/net.py:Net") == 12
    assert str(tmp_path) not in sys.path


def test_errors_say_where(tmp_path: Path) -> None:
    path = write(tmp_path / "broken.py", "import torch\n\ndef make():\n    return torch.ones(3) @ torch.ones(4)\n")
    with pytest.raises(DefinitionError, match=r"broken\.py:make fails: RuntimeError: .*broken\.py, line 4\)"):
        read_definition(f"{path}:make")
    path = write(tmp_path / "imports.py", "\nimport no_such_package_anywhere\n")
    with pytest.raises(
        DefinitionError, match=r"imports\.py, line 2\); what it imports is looked for beside it, in the w"
    ):
        read_definition(f"{path}:make")
    path = write(tmp_path / "syntax.py", "x =\n")
    with pytest.raises(DefinitionError, match=r"syntax\.py cannot be run: SyntaxError: .*syntax\.py, line 1\)"):
        read_definition(f"{path}:make")
    path = write(tmp_path / "types_of.py", "def make():\n    return len(3)\n")
    with pytest.raises(DefinitionError, match=r"fails: TypeError: .*types_of\.py, line 2\)"):
        read_definition(f"{path}:make")


def test_arguments(tmp_path: Path) -> None:
    path = write(
        tmp_path / "sized.py", NET.format(imports="", width="", lazy="").replace("width=)", "width, name='a')")
    )
    message = (
        r"sized\.py:Net cannot be called: missing .*'width'; it is Net\(width, name='a'\): give .* by --net-args wid"
    )
    with pytest.raises(DefinitionError, match=message):
        read_definition(f"{path}:Net")
    definition = read_definition(f"{path}:Net", arguments={"width": 7, "name": "b"})
    assert definition.shapes["first.weight"] == definition.template().first.weight.shape == (7, 3)
    with pytest.raises(DefinitionError, match=r"cannot be called: missing .*'a'; it is <lambda>\(a\): name a function"):
        called(lambda a: a, "f")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("width=64,depth=3", {"width": 64, "depth": 3}),
        ('{"width": 64, "bias": true}', {"width": 64, "bias": True}),
        ("sizes=[3,4],act=relu,bias=False,x=None", {"sizes": [3, 4], "act": "relu", "bias": False, "x": None}),
        ("name='a, b',file=data/x.csv,ok=true", {"name": "a, b", "file": "data/x.csv", "ok": True}),
        ("", {}),
    ],
)  # fmt: skip
def test_arguments_as_text(text: str, found: dict[str, Any]) -> None:
    assert arguments_of(text) == found


@pytest.mark.parametrize(
    "text", ["64", "width=", "width=1)", "{1: 2", "a=1,a=2", "**x", "[1]" * 5, "(" * 9999, "a=1)+f(b=2"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError, match=r"--net-args .*: give arguments by name, as width=64"):
        arguments_of(text)


def test_code_that_is_imported_while_nothing_runs_is_left_alone(tmp_path: Path) -> None:
    path = net(tmp_path / "net.py")
    with importing(f"{path}:Net"):
        assert sys.path[0] == str(tmp_path)
    assert str(tmp_path) not in sys.path
    assert torch.equal(torch.ones(1), torch.ones(1))
