"""The scripts of ``docs/``, which are no package."""

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@functools.cache
def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")  # as mkdocs loads hooks
        spec.loader.exec_module(module)
    return module


def hook(name: str) -> ModuleType:
    """A script that mkdocs calls; skips the test where what builds the pages is not installed."""
    for package in ("mkdocs", "griffe"):
        pytest.importorskip(package)
    return script(name)
