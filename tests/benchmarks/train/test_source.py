"""A changed model is another one, whatever its name; a comment changes nothing."""

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nfn_monomial.benchmarks.models.editors import editor_class
from nfn_monomial.benchmarks.train.source import code_of, made_of
from nfn_monomial.tools.predictors.models import model_class

WRITTEN = """
from nfn_monomial.nn import {layer}

class Base:
    width = {width}

class Mine(Base):
    def forward(self, x):
        return {layer}(x)
"""
COMMENTED = """
# A comment.
from nfn_monomial.nn import NeuronPool
class Base:
    '''A docstring.'''
    width = 1
class Mine(Base):
    '''Another.'''
    def forward(self, x):
        '''A third.'''

        return NeuronPool(
            x
        )
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("written_"):
            del sys.modules[name]


def code(folder: Path, name: str, text: str) -> str:
    (folder / f"written_{name}.py").write_text(text, encoding="utf-8")
    return code_of(importlib.import_module(f"written_{name}").Mine)


def test_code_counts_and_comments_do_not(modules: Path) -> None:
    first = code(modules, "first", WRITTEN.format(layer="NeuronPool", width=1))
    assert code(modules, "again", WRITTEN.format(layer="NeuronPool", width=1)) == first
    assert code(modules, "commented", COMMENTED) == first
    assert code(modules, "other_base", WRITTEN.format(layer="NeuronPool", width=2)) != first
    assert code(modules, "other_layer", WRITTEN.format(layer="MessageBlock", width=1)) != first


def test_a_model_is_made_of_what_it_imports() -> None:
    package = "nfn_monomial."
    monomial, gnn, statnn = (made_of(model_class(name)) for name in ("monomial", "gnn", "statnn"))
    for name in ("nn.linear", "basis.linear", "space.groups", "benchmarks.models.parts", "benchmarks.train.loop"):
        assert package + name in monomial, name
    assert {package + name for name in ("benchmarks.models.graphs", "adapters.pyg.conv")} <= gnn - monomial
    assert package + "benchmarks.models.monomial" not in statnn
    for names in (monomial, gnn, statnn):
        assert not [
            name for name in names if name.startswith((package + "benchmarks.settings", package + "benchmarks.data"))
        ]
    assert made_of(model_class("balanced-statnn")) == statnn
    assert package + "benchmarks.models.editors" in made_of(editor_class("np"))


def test_what_is_in_no_file_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    typed = type("Typed", (model_class("statnn"),), {"__module__": "typed_into_a_console"})
    with caplog.at_level(logging.WARNING):
        assert code_of(typed) == code_of(model_class("statnn"))
    assert "the source of typed_into_a_console is not known" in caplog.text
