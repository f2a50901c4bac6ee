"""The table of models is what the models answer."""

from __future__ import annotations

from types import ModuleType

import pytest

from nfn_monomial.tools.predictors.models import model_class


@pytest.mark.filterwarnings("ignore:.*nested tensor.*")
def test_the_table_is_up_to_date(which_model: ModuleType) -> None:
    page = which_model.PAGE.read_text(encoding="utf-8")
    assert which_model.written(page) == page, "run: python docs/which_model.py"


def test_a_model_that_is_not_what_it_claims_is_found(which_model: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert which_model.reads("statnn", which_model.CHAINS[0])
    monkeypatch.setattr(model_class("statnn"), "invariant_under", "group")
    assert not which_model.reads("statnn", which_model.CHAINS[0])


def test_a_model_of_one_width_is_found(which_model: ModuleType) -> None:
    assert not which_model.reads_any_width("mlp")
    assert which_model.reads_any_width("statnn")
