"""Code that a user names: which modules its imports find, in files, packages and the working directory."""

import sys
from pathlib import Path
from typing import Any

import pytest

from nfn_monomial.tools.definitions.define import read_definition
from nfn_monomial.tools.definitions.imports import DefinitionError, arguments_of, called, named

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


def test_modules_beside_a_file_are_found(tmp_path: Path) -> None:
    before = list(sys.path)
    write(tmp_path / "layers_of_one.py", "import parts_of_one\nWIDTH = parts_of_one.WIDTH + 3")
    write(tmp_path / "parts_of_one" / "__init__.py", "from .numbers import WIDTH")
    write(tmp_path / "parts_of_one" / "numbers.py", "WIDTH = 30")
    write(tmp_path / "late_of_one.py", "NUMBER = 3")
    lazy = "import late_of_one; assert late_of_one.NUMBER == 3"
    path = net(tmp_path / "net.py", "import layers_of_one", "layers_of_one.WIDTH", lazy)
    definition = read_definition(f"{path}:Net")
    assert definition.shapes["first.weight"][0] == 33
    assert definition.template().first.out_features == 33
    assert named(f"{path}:Net")[0].layers_of_one.WIDTH == 33
    assert sys.path == before


def test_files_of_one_name_are_two(tmp_path: Path) -> None:
    paths = [net(tmp_path / str(number) / "net.py", width=str(number)) for number in (3, 4)]
    assert [width_of(f"{path}:Net") for path in (*paths, *paths)] == [3, 4, 3, 4]


def test_modules_of_one_name_in_two_folders_are_refused(tmp_path: Path) -> None:
    """Python would give the second the first one's, whenever it is imported."""
    for number in (5, 6):
        write(tmp_path / str(number) / "helping.py", f"WIDTH = {number}")
        net(tmp_path / str(number) / "net.py", width="None").write_text(
            "from torch import nn, randn\n\ndef make():\n    import helping\n    return nn.Sequential("
            "nn.Linear(3, helping.WIDTH), nn.ReLU(), nn.Linear(helping.WIDTH, 2)), randn(4, 3)\n",
            encoding="utf-8",
        )
    first, second = (f"{tmp_path / str(number) / 'net.py'}:make" for number in (5, 6))
    _, make = named(second)  # which imports nothing yet
    assert len(read_definition(first).template().get_submodule("0").weight) == 5
    for use in (lambda: read_definition(second), lambda: called(make, second)):
        with pytest.raises(DefinitionError, match=r"6 and .*5 both have a module helping, .* another name in one"):
            use()


def test_folders_may_have_modules_of_one_name_that_are_not_imported_from_both(tmp_path: Path) -> None:
    for number in (7, 8):
        write(tmp_path / str(number) / "helping_too.py", f"WIDTH = {number}")
    first = net(tmp_path / "7" / "net.py", "from helping_too import WIDTH", "WIDTH")
    other = net(tmp_path / "8" / "other.py", width="9")
    assert [width_of(f"{path}:Net") for path in (first, other, first)] == [7, 9, 7]
    assert sys.modules["helping_too"].WIDTH == 7


def test_modules_of_packages_are_found_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "project_here" / "sizes.py", "WIDTH = 6")
    path = net(tmp_path / "project_here" / "net.py", "from .sizes import WIDTH", "WIDTH")
    assert width_of("project_here.net:Net") == 6
    with pytest.raises(DefinitionError, match=r"ImportError: attempted relative import .* package\.module:NAME those"):
        read_definition(f"{path}:Net")
    with pytest.raises(DefinitionError, match=r"project_here\.nothing cannot be imported, expected .* No module named"):
        read_definition("project_here.nothing:Net")
    assert str(tmp_path) not in sys.path


def test_errors_say_where(tmp_path: Path) -> None:
    path = write(tmp_path / "broken.py", "import torch\n\ndef make():\n    return torch.ones(3) @ torch.ones(4)\n")
    with pytest.raises(DefinitionError, match=r"broken\.py:make fails: RuntimeError: .*broken\.py, line 4\)"):
        read_definition(f"{path}:make")
    path = write(tmp_path / "imports.py", "\nimport no_such_package_anywhere\n")
    with pytest.raises(
        DefinitionError,
        match=r"no_such_package_anywhere' \(.*imports\.py, line 2\); a file finds the modules beside it",
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
