"""What gets installed is what lies in the folders, in the sizes that the project keeps to."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS = {name: ROOT / folder for name, folder in SETUPTOOLS["package-dir"].items()}


def packages() -> dict[str, Path]:
    """Name -> folder of every package that lies in the folders of the mapping."""
    found = {}
    for name, folder in FOLDERS.items():
        for init in folder.rglob("__init__.py"):
            found[".".join([name, *init.parent.relative_to(folder).parts])] = init.parent
    return found


def test_every_package_is_installed():
    assert set(SETUPTOOLS["packages"]) == set(packages())


def test_every_file_of_code_is_in_a_package():
    code = {path.parent for folder in FOLDERS.values() for path in folder.rglob("*.py")}
    assert code <= set(packages().values())


def test_data_files_of_packages_are_there():
    for package, patterns in SETUPTOOLS["package-data"].items():
        for pattern in patterns:
            assert list(packages()[package].glob(pattern)), f"{package} has no {pattern}"


@pytest.mark.parametrize("folder", packages().values(), ids=packages().keys())
def test_a_folder_can_be_taken_in_at_a_glance(folder: Path):
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= 14
