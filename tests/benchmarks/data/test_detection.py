"""Data by its path: every format is told from every other, and each is read by the commands it is for."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from published_writers import (
    write_dws_fashion,
    write_dws_mnist,
    write_nfn,
)
from small_cnns import cnn_layout, write_zoo
from torch import nn

from nfn_monomial.benchmarks.data.formats.base import FORMATS, CorpusError
from nfn_monomial.benchmarks.data.formats.detection import detect, load_generalization, load_inr, option_names
from nfn_monomial.benchmarks.data.sirens import InrCorpus
from nfn_monomial.benchmarks.make.config import MixedConfig, ZooConfig
from nfn_monomial.benchmarks.make.inrs import InrConfig, make_inrs
from nfn_monomial.benchmarks.make.zoo import make_zoo


def small_zoo(folder: Path) -> None:
    rows, layout = 24, cnn_layout((1, 2, 2), head=(3,))
    lines = [
        {"config.activation": ("relu", "tanh")[i % 2], "modeldir": i, "step": 0, "test_accuracy": i / rows}
        for i in range(rows)
    ]
    write_zoo(folder, torch.randn(rows, layout[-1].end), lines, layout)


def dws_mnist(folder: Path) -> None:
    parts = {"train": "training", "val": "training", "test": "testing"}
    write_dws_mnist(folder, {part: [(kind, 1, n)] for n, (part, kind) in enumerate(parts.items())})


def checkpoints(folder: Path) -> None:
    for n in range(12):
        torch.save(nn.Linear(2, 2).state_dict(), folder / f"{n}.pt")
    lines = [f"{n}.pt,0.{n:02}\n" for n in range(12)]
    (folder / "targets.csv").write_text(f"checkpoint,accuracy\n{''.join(lines)}", encoding="utf-8")


def linear() -> tuple[nn.Module, torch.Tensor]:
    return nn.Linear(2, 2), torch.randn(3, 2)


OPTIONS = {"checkpoints": [f"net={__name__}:linear"]}


WRITERS = {
    "small-cnn-zoo": small_zoo,
    "made-zoo": lambda p: make_zoo(p, ZooConfig(networks=20, epochs=(1, 1), train_fractions=(0.1,))),
    "mixed-zoo": lambda p: make_zoo(p, MixedConfig(networks=10, epochs=(1, 1), depths=(2, 2), widths=(2, 2))),
    "nfn-sirens": lambda p: write_nfn(p, (0, 45_000, 50_000)),
    "dws-mnist": dws_mnist,
    "dws-fashion": lambda p: write_dws_fashion(p, {"train": [1], "val": [0], "test": [2]}),
    "made-inrs": lambda p: make_inrs(p, InrConfig("digits", limit=40, steps=1)),
    "checkpoints": checkpoints,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_is_found_and_read_for_its_kind(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    assert detect(tmp_path) == name
    if FORMATS[name].kind == "inr":
        corpus = load_inr(str(tmp_path))
        assert isinstance(corpus, InrCorpus)
        assert all(len(part) for part in (corpus.train, corpus.val, corpus.test))
        with pytest.raises(CorpusError, match=rf"{name}: images \(INRs\), .* nfn-monomial classify-inr and edit-inr"):
            load_generalization(tmp_path)
    else:
        corpora = load_generalization(str(tmp_path), OPTIONS.get(name, []))
        assert all(len(part) for corpus in corpora.values() for part in (corpus.train, corpus.val, corpus.test))
        assert all(corpus.source["path"] == str(tmp_path) for corpus in corpora.values())
        with pytest.raises(CorpusError, match=rf"{name}: classifiers .* data for nfn-monomial predict-generalization"):
            load_inr(tmp_path)
    load: Callable[..., Any] = load_inr if FORMATS[name].kind == "inr" else load_generalization
    with pytest.raises(CorpusError, match=rf"format {name}, which has no option sead, on_progress; it has ") as caught:
        load(tmp_path, ["on_progress=print"], sead=1)
    assert "on_progress" not in str(caught.value).partition("it has ")[2]


def test_unknown_folders(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"has no known format.* Found: nothing, it is empty"):
        detect(tmp_path)
    for n in range(10):
        (tmp_path / f"photo{n}.png").touch()
    (tmp_path / "sub").mkdir()
    with pytest.raises(CorpusError) as caught:
        detect(tmp_path)
    assert all(f"{name}: {known.looks_for}" in str(caught.value) for name, known in FORMATS.items())
    assert "Found: photo0.png, photo1.png" in str(caught.value)
    assert str(caught.value).endswith("photo7.png and 3 more")
    with pytest.raises(CorpusError, match=r"photo0\.png is a file, expected the folder of a data set"):
        detect(tmp_path / "photo0.png")
    with pytest.raises(CorpusError, match="nowhere does not exist"):
        detect(tmp_path / "nowhere")


def test_the_page_on_data_has_all_options() -> None:
    page = (Path(__file__).parents[3] / "docs" / "limits.md").read_text(encoding="utf-8")
    table = page.partition("| set |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[-2] for line in table.splitlines()[2:]))
    assert {option for name in FORMATS for option in option_names(name)} == set(named)


def test_options_as_texts_do_what_options_do(tmp_path: Path) -> None:
    small_zoo(tmp_path / "zoo")
    zoo, done = tmp_path / "zoo", list[tuple[int, int]]()
    assert list(load_generalization(zoo, ["activations=tanh", "limit = 2"], activations=["relu"])) == ["tanh"]
    assert len(load_generalization(zoo, ["limit=2"], limit=3)["relu"].train[0]) == 2
    with pytest.raises(ValueError, match="keep_duplicate is 'maybe', but should be a valid boolean"):
        load_generalization(zoo, ["keep_duplicate=maybe"])
    write_nfn(tmp_path / "nfn", (0, 1, 45_000, 50_000))
    corpus = load_inr(tmp_path / "nfn", ["omega_0=20", "limit=1"], on_progress=lambda *at: done.append(at))
    assert (corpus.siren.omega_0, len(corpus.train), done[-1]) == (20.0, 1, (3, 3))
    assert load_inr(tmp_path / "nfn").siren.omega_0 == 30.0
    with pytest.raises(ValueError, match="limit is 'many', but should be a valid integer"):
        load_generalization(zoo, ["limit=many"])
