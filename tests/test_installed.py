"""The package as ``pip install`` leaves it: a wheel is built from a copy of the folders, and put in an empty folder."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "README.md", "LICENSE")
PACKAGES = ("nfn_monomial", "adapters", "benchmarks")


def wheel(copy: Path, **environment: str) -> Path:
    """Builds a wheel from a copy of the folders that are installed, with what this environment has for it."""
    copy.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    pip("wheel", "--no-build-isolation", "--wheel-dir", copy / "dist", copy, **environment)
    (built,) = (copy / "dist").iterdir()
    return built


def pip(*arguments: str | Path, **environment: str) -> None:
    settings = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment}
    command = [sys.executable, "-m", "pip", "--quiet", *map(str, arguments)]
    subprocess.run(command, env={**os.environ, **settings}, check=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("install")
    pip("install", "--target", folder / "site", wheel(folder / "clone"))
    return folder / "site"


def python(code: str, installed: Path, folder: Path) -> list[str]:
    """Runs code in a folder; the package is the installed one, all else comes from this environment."""
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    paths = os.pathsep.join(map(str, (installed, *others)))
    # -S: an editable install of this environment is not looked at.
    command = [sys.executable, "-S", "-c", code]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.check_output(command, cwd=folder, env=environment, text=True).splitlines()


FOLDERS = """
import nfn_monomial, nfn_monomial.adapters.nfn, nfn_monomial.benchmarks.settings, os
for package in nfn_monomial, nfn_monomial.adapters, nfn_monomial.benchmarks:
    print(os.path.dirname(os.path.abspath(package.__file__)))
"""


def test_python_in_the_folder_of_the_clone_has_adapters_and_experiments(installed: Path) -> None:
    """There ``nfn_monomial`` is the folder of the clone, whose adapters and experiments lie beside it."""
    assert python(FOLDERS, installed, ROOT) == [str(ROOT / name) for name in PACKAGES]


def test_elsewhere_the_installed_package_is_imported(installed: Path, tmp_path: Path) -> None:
    """Folders that have the names of adapters and experiments by chance are not taken for them."""
    for name in ("adapters", "benchmarks"):
        (installed / name).mkdir()
        (installed / name / "__init__.py").write_text("raise AssertionError\n")
    inside = installed / "nfn_monomial"
    assert python(FOLDERS, installed, tmp_path) == [str(inside), str(inside / "adapters"), str(inside / "benchmarks")]


def test_all_that_lies_in_the_folders_is_installed(installed: Path) -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    assert data
    for package, patterns in data.items():
        for pattern in patterns:
            assert list((installed / package.replace(".", "/")).glob(pattern)), f"{package} has no {pattern}"


def test_a_wheel_that_is_built_twice_is_the_same(tmp_path: Path) -> None:
    """From copies in two folders, whose files were written at different times."""
    first, second = (wheel(tmp_path / name, SOURCE_DATE_EPOCH="1700000000") for name in ("one", "another"))
    assert first.read_bytes() == second.read_bytes()
