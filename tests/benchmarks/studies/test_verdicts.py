"""The study of verdicts in small: pairs are what they are said to be, counts are right, what is done is kept."""

import json

import pytest
import torch

from nfn_monomial import compare
from nfn_monomial.benchmarks.settings.measurements import VerdictsConfig
from nfn_monomial.benchmarks.studies.alignment import verdicts
from nfn_monomial.benchmarks.studies.alignment.verdicts import CHANGES, NETWORKS, Cell, count_verdicts, verdicts_report

SMALL = VerdictsConfig(different=20, same=4)
PAIRS = {"none": 1, **dict.fromkeys(CHANGES, 1)}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("network", ["MLP, tanh", "transformer"])
def test_changes_change_something_and_nothing_else(network, change):
    space = NETWORKS[network]()
    generator = torch.Generator().manual_seed(1)
    a = verdicts._drawn(space, torch.float64, generator)
    kept = {name: x.clone() for name, x in a.items()}
    changed = CHANGES[change](space, a, generator)
    assert all(torch.equal(a[name], x) for name, x in kept.items())
    different = [name for name in a if not torch.equal(a[name], changed[name])]
    assert len(different) == (1 if change in ("one weight", "one sign", "two swapped") else len(a))
    if change == "one weight":
        assert int((a[different[0]] != changed[different[0]]).sum()) == 1
    if change == "one sign":
        assert torch.equal(a[different[0]].abs(), changed[different[0]].abs())
    if change == "two swapped":
        assert torch.equal(a[different[0]].flatten().sort().values, changed[different[0]].flatten().sort().values)


def test_counts_and_going_on(tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts, "NETWORKS", {"MLP, tanh": NETWORKS["MLP, tanh"]})
    seen = []
    cells = count_verdicts(SMALL, tmp_path, lambda done, total: seen.append((done, total)))
    assert {cell.change: cell.pairs for cell in cells} == PAIRS
    assert {cell.change: cell.same for cell in cells} == dict.fromkeys(CHANGES, 0) | {"none": 1}
    assert seen == [(i + 1, len(PAIRS)) for i in range(len(PAIRS))]
    values = json.loads((tmp_path / "cells.json").read_text())
    del values["cells"][1:]
    (tmp_path / "cells.json").write_text(json.dumps(values))
    asked = []
    monkeypatch.setattr(verdicts, "compare", lambda *given: asked.append(given) or compare(*given))
    again = count_verdicts(SMALL, tmp_path)
    assert len(asked) == len(CHANGES)
    assert [(c.change, c.same, c.least, c.most) for c in again] == [(c.change, c.same, c.least, c.most) for c in cells]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": 3, "cells": []}', '{"cells": [{}]}'])
def test_damaged_files_are_nothing_done(tmp_path, text):
    (tmp_path / "cells.json").write_text(text)
    assert verdicts._kept(tmp_path / "cells.json", SMALL) == []


def test_the_table_says_how_many(tmp_path):
    cells = [Cell("CNN", "none", 40, 40, 0.0, 1e-15, 2.0), Cell("CNN", "noise", 50, 1, 1e-8, 1.0, 5.0)]
    text = verdicts_report(cells, SMALL).markdown
    assert "| CNN | noise | 50 | 1 | 1e-08 | 1e+00 | 100 |" in text
    assert "Called the same: 40 of 40 pairs that are, 1 of 50 that are not." in text
