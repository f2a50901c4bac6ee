"""A folder of checkpoints with a table of targets, and published sets that files of the docs bring into that form."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from corpora import check_functions
from published_writers import (
    save,
    save_as_omegaconf,
    wild_config,
    write_hub,
    write_model_zoo,
    write_wild_park,
)
from torch import nn

from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.formats.labelled import Request, read_labelled
from nfn_monomial.benchmarks.data.networks import accuracies, fingerprint
from nfn_monomial.tools.definitions.define import read_definition

PUBLISHED = Path(__file__).parents[3] / "docs" / "published"
SOURCE = """
import torch
from torch import nn

def network(width=3, activation="ReLU"):
    return nn.Sequential(nn.Linear(2, width), getattr(nn, activation)(), nn.Linear(width, 2)), torch.randn(4, 2)
"""


def network(width: int = 3, activation: str = "ReLU") -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), getattr(nn, activation)(), nn.Linear(width, 2))


@pytest.fixture
def net(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(SOURCE, encoding="utf-8")
    return f"{path}:network"


def written(folder: Path, networks: list[nn.Module], lines: list[dict[str, Any]] | None = None) -> Path:
    """Checkpoints of both kinds; the accuracy of the n-th is n / 100."""
    table = []
    for n, one in enumerate(networks):
        name = f"runs/{n}/model.safetensors" if n % 2 else f"{n}.pt"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if n % 2:
            safetensors.torch.save_file(one.state_dict(), folder / name)
        else:
            torch.save(one.state_dict(), folder / name)
        table.append({"checkpoint": name, "accuracy": n / 100, **(lines[n] if lines else {})})
    (folder / "targets.json").write_text(json.dumps(table), encoding="utf-8")
    return folder


def test_both_tables_and_both_kinds_of_files_say_the_same(tmp_path: Path, net: str) -> None:
    splits = [{"split": name} for name in ("train", "val", "test", "train", "test", "val") * 2]
    made = [network() for _ in splits]
    folder = written(tmp_path / "runs", made, splits)
    (corpus,) = load_generalization(folder, net=net).values()
    percents = [
        [round(100 * a) for p in parts for a in p.networks.accuracy.tolist()] for parts in (corpus.train, corpus.test)
    ]
    assert percents == [[0, 3, 6, 9], [2, 4, 8, 10]]
    check_functions(corpus, made, torch.randn(3, 2))
    before = fingerprint(corpus)
    lines = json.loads((folder / "targets.json").read_text())
    (folder / "targets.json").unlink()
    rows = [f"{line['accuracy']},{line['checkpoint']},{line['split']},\n" for line in lines]
    (folder / "targets.csv").write_text("accuracy,checkpoint,split,arguments\n" + "".join(rows), encoding="utf-8")
    (again,) = load_generalization(folder, net=net).values()
    assert fingerprint(again) == before
    percent = [f"{100 * line['accuracy']:.1f}%,{line['checkpoint']},{line['split']},\n" for line in lines]
    (folder / "targets.csv").write_text("score,checkpoint,side,arguments\n" + "".join(percent), encoding="utf-8")
    (again,) = load_generalization(folder, net=net, column="score", split="side").values()
    assert fingerprint(again) == before


def test_without_splits_they_are_drawn(tmp_path: Path, net: str) -> None:
    folder = written(tmp_path / "runs", [network() for _ in range(20)])
    (whole,) = load_generalization(folder, [f"net={net}", "seed=2"]).values()
    (corpus,) = load_generalization(folder, [f"net={net}", "limit=3", "seed=2"]).values()
    assert (corpus.source["train"], corpus.source["val"], corpus.source["test"]) == (3, 3, 3)
    assert corpus.source["split"].startswith("drawn with seed 2")
    assert accuracies(corpus.train).tolist() == accuracies(whole.train).tolist()[:3]
    assert accuracies(corpus.test).tolist() == accuracies(whole.test).tolist()


def test_both_uses_read_the_same(tmp_path: Path, net: str) -> None:
    """The format, and what `train` learns from, of one table; a file that cannot be used is an error, or counted."""
    folder = written(tmp_path / "runs", [network() for _ in range(20)])
    (corpus,) = load_generalization(folder, net=net, seed=1).values()
    request = Request(folder, folder / "targets.json", "accuracy", seed=1)
    labelled = read_labelled(request, lambda arguments: read_definition(net))
    pairs = (
        (corpus.train, labelled.corpus.train),
        (corpus.val, labelled.corpus.val),
        (corpus.test, labelled.corpus.test),
    )
    for parts, others in pairs:
        assert accuracies(parts).tolist() == pytest.approx(accuracies(others).tolist())
    torch.save(network(4).state_dict(), folder / "2.pt")
    with pytest.raises(CorpusError, match=r"targets\.json: 1 files cannot be used, as .*2\.pt"):
        load_generalization(folder, net=net)
    assert "1 files cannot be used, as " in "\n".join(
        read_labelled(request, lambda arguments: read_definition(net)).notes
    )


def test_arguments_make_a_mixed_set(tmp_path: Path, net: str) -> None:
    arguments = [{}, {"width": 5}, {"activation": "Tanh", "width": 4}] * 4
    made = [network(**keywords) for keywords in arguments]
    lines = [
        {"arguments": keywords, "split": ("train", "val", "test", "train")[n // 3]}
        for n, keywords in enumerate(arguments)
    ]
    folder = written(tmp_path / "runs", made, lines)
    corpus = load_generalization(folder, net=net)["mixed"]
    assert corpus.mixed
    assert [len(parts) for parts in (corpus.train, corpus.val, corpus.test)] == [3, 3, 3]
    check_functions(corpus, made, torch.randn(3, 2))
    request = Request(folder, folder / "targets.json", "accuracy", split="split", arguments="arguments")
    labelled = read_labelled(request, lambda arguments: read_definition(net, arguments=arguments))
    for side, parts in (("train", labelled.corpus.train), ("test", labelled.corpus.test)):
        numbers = [round(100 * a) for a in accuracies(parts).tolist()]
        assert [
            path.parent.name if n % 2 else path.stem for n, path in zip(numbers, labelled.paths[side], strict=True)
        ] == [str(n) for n in numbers]


def lines(**changed: Any) -> list[dict[str, Any]]:
    """Returns a table of 12 networks, with other cells."""
    return [{"checkpoint": f"{n}.pt" if n % 2 == 0 else f"runs/{n}/model.safetensors", "accuracy": n / 100}
            | {name: cells[n] for name, cells in changed.items()} for n in range(12)]  # fmt: skip


LINES: list[tuple[Any, str]] = [
    ([{"checkpoint": "0.pt"}], r"targets\.json has no column 'accuracy': it has checkpoint"),
    (lines(accuracy=[*range(11), 95]), r"targets\.json: accuracy of .*pt is \d+, expected a share in \[0, 1\]"),
    (lines(checkpoint=["../net.py"] * 12), r"no line of .*targets\.json names one checkpoint"),
    (lines(checkpoint=["0.pt"] * 12), r"entry 0 and entry 1 both name .*0\.pt: keep one of them"),
    (lines(split=["leave"] * 12), r"entry 0: split is 'leave', expected train, val, test"),
    (lines()[:1], r"1 lines name a checkpoint, at least 10 are needed"),
    (lines(checkpoint=[*(f"{n}.pt" for n in range(0, 12, 2)), *["x.pt"] * 6]), r"6 lines have no file, as x\.pt"),
    (lines(accuracy=[*range(11), "nan"]), r"1 lines have no accuracy that is finite, as entry 11"),
    (
        lines(arguments=[{"depth": 3}] * 12),
        r"unexpected keyword argument 'depth'.*\(of networks with the arguments \{\"depth\": 3\}\)",
    ),
    (lines(arguments=[[3]] * 12), r"entry 0: arguments are \[3\], expected an object, as \{\}"),
    (lines(split=["", *["train"] * 11]), r"entry 0: split is '', expected train, val, test"),
]


@pytest.mark.parametrize(("content", "message"), LINES)
def test_tables_that_cannot_be_used_are_named(tmp_path: Path, net: str, content: Any, message: str) -> None:
    folder = written(tmp_path / "runs", [network() for _ in range(12)])
    (folder / "targets.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        load_generalization(folder, net=net)


def test_files_that_cannot_be_used_are_named(tmp_path: Path, net: str) -> None:
    folder = written(tmp_path / "runs", [network() for _ in range(10)])
    with pytest.raises(CorpusError, match=r"say what these networks are: net \(--data-option net=module\.py:Class"):
        load_generalization(folder)
    torch.save(network(4).state_dict(), folder / "2.pt")
    with pytest.raises(CorpusError, match=r"2\.pt: the weights are of another architecture than network: of other sha"):
        load_generalization(folder, net=net)
    save({"model": network().state_dict(), "ema": network().state_dict()}, folder / "2.pt")
    with pytest.raises(CorpusError, match=r"2\.pt holds several state dicts, model, ema"):
        load_generalization(folder, net=net)


# -- the functions of the docs ----------------------------------------------------------------------------------------


def in_docs(tmp_path: Path, file: str, name: str) -> tuple[dict[str, Any], str]:
    """The code of a file in the docs, and the path of a copy of it."""
    code = (PUBLISHED / file).read_text(encoding="utf-8")
    path = tmp_path / f"{name}.py"
    path.write_text(code, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(code, str(path), "exec", dont_inherit=True), namespace)
    return namespace, str(path)


def test_the_wild_park(tmp_path: Path) -> None:
    """Residual networks of several checkpoints, their configurations pickled by OmegaConf."""
    configs = [
        wild_config([4, 6, 8], [3, 5, 3], ["relu", "gelu", "tanh"], [-1, -1, 0]),
        wild_config([4, 4, 6], [3, 3, 5], ["leaky_relu", "none", "sigmoid"], [-1, -1, -1]),
    ]
    made = {}
    for n in range(8):
        made |= write_wild_park(tmp_path / "park" / f"trial-{n}", [configs[n % 2]] * 2, start=2 * n)
        for path in (tmp_path / "park" / f"trial-{n}").iterdir():
            path.rename(path.with_name(f"checkpoint_{path.name}"))
    for path in (tmp_path / "park").rglob("checkpoint.pt"):
        save_as_omegaconf(torch.load(path, weights_only=True), path)
    namespace, module = in_docs(tmp_path, "wild_park.py", "wild")
    namespace["write_wild_park_table"](tmp_path / "park")
    corpus = load_generalization(tmp_path / "park", net=f"{module}:WildCnn", key="model")["mixed"]
    assert corpus.source["architectures"] == 2
    check_functions(corpus, list(made.values()), torch.randn(2, 3, 9, 9), times=1000)
    trials = [{round(1000 * a) // 2 for p in parts for a in p.networks.accuracy.tolist()} for parts in
              (corpus.train, corpus.val, corpus.test)]  # fmt: skip
    assert sum(map(len, trials)) == len(set.union(*trials)) == 8


def test_model_zoos(tmp_path: Path) -> None:
    config = {"model::nlin": "tanh", "model::dropout": 0.3}
    made = write_model_zoo(tmp_path / "zoo", 12, config=config, dropout=True)
    with (tmp_path / "zoo" / "NN_tune_trainable_00002_2_seed=2" / "result.json").open("a") as file:
        file.write('{"training_iteration": 11, "test_')
    namespace, module = in_docs(tmp_path, "model_zoos.py", "zoo")
    namespace["write_model_zoo_table"](tmp_path / "zoo")
    (corpus,) = load_generalization(tmp_path / "zoo", net=f"{module}:network").values()
    last = [one for path, one in made.items() if path.parent.name == "checkpoint_000010"]
    check_functions(corpus, last, torch.randn(2, 1, 28, 28))


def test_hub(tmp_path: Path) -> None:
    made = write_hub(tmp_path / "hub", [f"models--me--{n}/snapshots/abc" for n in range(12)])
    namespace, _ = in_docs(tmp_path, "hub.py", "hub")
    namespace["write_hub_table"](tmp_path / "hub")
    (corpus,) = load_generalization(tmp_path / "hub", net="published_writers:HubNet", input_shape=(1, 6, 6)).values()
    check_functions(corpus, list(made.values()), torch.randn(4, 1, 6, 6))
