"""The table of models is what the models answer."""

import pytest
from scripts import script

from nfn_monomial.tools.predictors.models import model_class

page = script("which_model")
TEXT = page.PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*nested tensor.*")
def test_the_table_is_up_to_date() -> None:
    assert page.written(TEXT) == TEXT, "run: python docs/which_model.py"


def test_the_table_has_all_models_and_its_first_lines_are_up_to_date() -> None:
    names = list(page.model_names("generalization"))
    lines = page.TABLE.search(TEXT)[0].splitlines()[4:-2]
    assert [line.split("`")[1] for line in lines] == names
    assert lines[:3] == [page.line(name) for name in names[:3]], "run: python docs/which_model.py"


def test_a_model_that_is_not_what_it_claims_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert page.reads("statnn", page.CHAINS[0])
    monkeypatch.setattr(model_class("statnn"), "invariant_under", "group")
    assert not page.reads("statnn", page.CHAINS[0])


def test_a_model_of_one_width_is_found() -> None:
    assert not page.reads_any_width("mlp")
    assert page.reads_any_width("statnn")
