"""Parameter counts: the closed formulas are what layers have, and what the paper states of sizes and growth."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfn_monomial.benchmarks.experiments.params import ParamsConfig
from nfn_monomial.benchmarks.studies.params import (
    IO,
    LAYERS,
    Family,
    claims_table,
    closed_form,
    counted,
    layer_counts,
    layer_table,
    model_tables,
)
from nfn_monomial.tools.report import Table

KINDS = list(LAYERS.values())


@pytest.mark.parametrize(("family", "io"), KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_the_closed_form_is_what_layers_have(family: Family, io: IO, data: st.DataObject) -> None:
    depth = data.draw(st.integers(2, 6), "depth")
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=depth + 1, max_size=depth + 1), "sizes")
    kernels = data.draw(st.lists(st.integers(1, 3), min_size=depth, max_size=depth), "kernels")
    channels = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)), "channels")
    parameters = counted(family, sizes, kernels, channels, io)
    assert closed_form(family, sizes, [k * k for k in kernels], channels, io) == parameters
    assert closed_form(family, [sizes[0] + 1, *sizes[1:]], [k * k for k in kernels], channels, io) != parameters or (
        family == "NP"
    ), "inputs count in all families but NP"


def test_the_layer_of_the_zoo() -> None:
    counts = {c.layer: c for c in layer_counts(ParamsConfig())}
    assert counts["EquivariantLinear, SCALE"].counted == 118_944
    assert counts["nfn NPLinear"].counted == 564_096
    assert counts["nfn HNPLinear"].counted == 1_132_256
    assert all(c.formula in (None, c.counted) for c in counts.values())
    assert closed_form("SCALE", (784, 16, 16, 10), (1, 1, 1), (16, 16)) == 157_805_472
    table = layer_table(list(counts.values()), ParamsConfig())
    assert table.cells[-1] == ("nfn HNPLinear", "1,132,256", "", "1.000")


def test_growth_against_the_claims_of_the_paper() -> None:
    slopes = {line[0]: line[2:] for line in claims_table(ParamsConfig()).cells}
    assert slopes["NP"] == ("2.00", "0.00", "0.00")
    assert slopes["HNP"] == ("2.00", "2.00", "2.00")
    assert slopes["SCALE"] == slopes["SIGN"] == ("1.00", "2.00 (claim: 1)", "2.00 (claim: 1)")
    assert slopes["SCALE, factored"] == slopes["SIGN, factored"] == ("1.00", "1.00", "1.00")


@pytest.fixture(scope="module")
def tables() -> list[Table]:
    return model_tables()


def test_models_have_the_published_sizes(tables: list[Table]) -> None:
    cnn, classify, edit = tables
    for table, names in ((cnn, ("statnn", "np", "hnp", "monomial")), (classify, ("inr-np", "inr-hnp"))):
        for line in (line for line in table.cells if line[0] in names):
            for ours, paper in zip(line[3:5], line[5:7], strict=True):
                assert float(ours[:-1]) == pytest.approx(float(paper[:-1]), abs=0.016, rel=0.025), line
    sizes = {line[0]: line[4:] for line in edit.cells}
    assert sizes["hnp"] == ("12.88M", "", "12.8M")
    assert "hnp" in {line[0] for line in classify.cells}
    assert {len(line) for line in cnn.cells} == {7}
