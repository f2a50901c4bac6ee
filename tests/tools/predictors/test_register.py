"""The register of models: names and labels that are taken are refused, and leave it as it was."""

import pytest

from nfn_monomial.tools.predictors.models import Register


class First:
    label, invariant_under = "HNP", "permutations"


class Inherits(First):
    pass


class Own(First):
    label = "mine"


@pytest.fixture
def models() -> Register[type[First]]:
    register: Register[type[First]] = Register("model", {})
    register("hnp")(First)
    return register


def test_a_subclass_needs_a_label_of_its_own(models: Register[type[First]]) -> None:
    """Or tables would take both for one model, and count the answers of one for the other."""
    with pytest.raises(
        ValueError, match=r"models 'hnp' and 'my-hnp' are both called 'HNP' in tables.*give one of them"
    ):
        models("my-hnp")(Inherits)
    assert list(models) == ["hnp"]
    models("my-hnp")(Own)
    assert [models[name] for name in models] == [First, Own]


class Nameless:
    invariant_under = "group"


class Misspelt(First):
    label, invariant_under = "other", "permutation"


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Nameless, "Nameless.label is None, but tables show it: expected a name"),
        (Misspelt, "Misspelt.invariant_under is 'permutation'.* expected 'group' or 'permutations' or 'nothing'"),
    ],
)
def test_what_tables_show_is_there(cls: type[First], message: str, models: Register[type[First]]) -> None:
    with pytest.raises(ValueError, match=message):
        models("new")(cls)
    assert list(models) == ["hnp"]


def test_a_name_is_of_one_class(models: Register[type[First]]) -> None:
    assert models("hnp")(First) is First
    with pytest.raises(ValueError, match="another model is registered as 'hnp' already: First"):
        models("hnp")(Own)
    assert models["hnp"] is First
