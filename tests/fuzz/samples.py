"""Real files of every format that is read, small, and what reading them gives: what the fuzzer damages.

A new kind of file takes part by a function in ``SAMPLES`` that writes it into a folder.
"""

import functools
import random
import shutil
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import published_small_cnns as published
import published_writers as writers
import torch
from made_up_runs import made_up_run
from safetensors.torch import save_file
from small_cnns import cnn_layout, write_zoo
from torch import Tensor, nn

from nfn_monomial import WeightSpace
from nfn_monomial.benchmarks.data.formats.base import FORMATS
from nfn_monomial.benchmarks.data.formats.detection import detect
from nfn_monomial.benchmarks.data.networks import Corpus
from nfn_monomial.benchmarks.data.sirens import InrCorpus
from nfn_monomial.benchmarks.make.config import ZooConfig
from nfn_monomial.benchmarks.make.inrs import InrConfig, make_inrs
from nfn_monomial.benchmarks.make.zoo import make_zoo
from nfn_monomial.benchmarks.train.checkpoint import UnfinishedTraining
from nfn_monomial.benchmarks.train.runs import RunStore
from nfn_monomial.tools.definitions.define import Definition, read_definition
from nfn_monomial.tools.files.atomic import write_json
from nfn_monomial.tools.files.checkpoints import read_checkpoint
from nfn_monomial.tools.files.networks import load_checkpoint, load_safetensors, save_safetensors
from nfn_monomial.tools.predictors.predictor import SHIPPED, Predictor

Facts = dict[str, Tensor | str]
"""What a file means: tensors and texts by name."""


def load_corpus(path: Path, **options: Any) -> Any:
    """The networks in a folder of any known format."""
    return FORMATS[detect(path)].load(path, **options)


class Sample(NamedTuple):
    """A file or folder that is read.

    Attributes:
        path: what ``load`` is called with.
        load: reads it.
        sealed: whether all of it has checksums that a repaired archive does not have: then nothing but the same data
            may come of damage.
        victims: the files that are damaged, one of them at a time; all files of a folder if none is named.
    """

    path: Path
    load: Callable[[Path], Any] = load_corpus
    sealed: bool = False
    victims: tuple[Path, ...] = ()


def facts(read: Any, name: str = "") -> Facts:
    """What something that was read means; without where it comes from, which folders are part of."""
    if isinstance(read, Tensor):
        return {name: read.detach()}
    if isinstance(read, Mapping):
        return {key: value for k, v in read.items() for key, value in facts(v, f"{name}/{k}").items()}
    if isinstance(read, Corpus | InrCorpus):
        parts = {part: getattr(read, part) for part in ("train", "val", "test")}
        if isinstance(read, InrCorpus):
            held = {part: {"tensors": x.tensors, "label": x.labels, "image": x.image} for part, x in parts.items()}
            return facts(held) | {"siren": f"{read.siren} {read.classes}"}
        return facts({f"{part}/{i}": group for part, groups in parts.items() for i, group in enumerate(groups)})
    if hasattr(read, "networks") and hasattr(read, "info"):  # a group of networks of one architecture
        tensors = {"tensors": read.networks.tensors, "accuracy": read.networks.accuracy}
        text = f"{read.info.activation} {read.info.space} {read.info.input_shape}"
        return facts(tensors, name) | {f"{name}/info": text}
    if isinstance(read, Predictor):
        return facts(read.model.state_dict(), name) | {"record": f"{read.task} {read.record}"}
    if isinstance(read, Definition):
        return {"space": f"{read.space} {read.shapes}"}
    return {name: repr(read)}


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))


def nfn_sirens(folder: Path) -> Sample:
    writers.write_nfn(folder, [1, 2, 13, 45_001, 50_002], hidden=4)
    return Sample(folder)


def dws_mnist(folder: Path) -> Sample:
    train = [("training", 5, 1), ("training", 0, 2)]
    writers.write_dws_mnist(folder, {"train": train, "val": [("training", 1, 3)], "test": [("testing", 2, 1)]})
    return Sample(folder)


def dws_fashion(folder: Path) -> Sample:
    writers.write_dws_fashion(folder, {"train": [0, 1], "val": [2], "test": [3]})
    return Sample(folder)


NET = "import torch\nfrom fuzz.samples import _network\ndef build():\n    return _network(), torch.randn(2, 3)\n"


NAMES = ("a.safetensors", *(f"{name}.pt" for name in "bcdefghijkl"))


def _checkpoints(folder: Path) -> Callable[[Path], Any]:
    """Networks in both kinds of files; what reads the folder, with the function that makes them."""
    folder.mkdir()
    for name in NAMES[1:]:
        torch.save(_network().state_dict(), folder / name)
    save_file(_network().state_dict(), folder / NAMES[0])
    net = folder.with_name(f"{folder.name}.py")
    net.write_text(NET, encoding="utf-8")
    return functools.partial(load_corpus, net=f"{net}:build")


def checkpoints_csv(folder: Path) -> Sample:
    load = _checkpoints(folder)
    lines = [f"{name},0.{n:02}\n" for n, name in enumerate(NAMES)]
    (folder / "targets.csv").write_text(f"checkpoint,accuracy\n{''.join(lines)}", encoding="utf-8")
    return Sample(folder, load)


def checkpoints_json(folder: Path) -> Sample:
    load, table, sides = _checkpoints(folder), folder / "targets.json", ("train", "val", "test")
    lines = [
        {"checkpoint": name, "accuracy": n / 20, "split": sides[n % 3], "arguments": {}} for n, name in enumerate(NAMES)
    ]
    write_json(table, lines)
    return Sample(folder, load, victims=(table,))


def published_zoo(folder: Path) -> Sample:
    """As it is published, without checksums."""
    layout = cnn_layout((1, 3, 3), 3, (3,))
    weights = torch.randn(published.ROWS, layout[-1].end)
    write_zoo(folder, weights, [published.published_row(row) for row in range(published.ROWS)], layout)
    return Sample(folder)


def made_zoo(folder: Path) -> Sample:
    make_zoo(folder, ZooConfig(networks=12, epochs=(1, 1), train_fractions=(0.01,)), workers=1)
    return Sample(folder, sealed=True)


def made_inrs(folder: Path) -> Sample:
    make_inrs(folder, InrConfig("digits", limit=20, steps=1, shard=8), workers=1)
    return Sample(folder, sealed=True)


def torch_file(folder: Path) -> Sample:
    network = _network()
    writers.save({"epoch": 3, "state": network.state_dict(), "half": network[0].weight.half()}, folder / "a.pt")
    return Sample(folder / "a.pt", functools.partial(load_checkpoint, key="state"))


def legacy_torch_file(folder: Path) -> Sample:
    folder.mkdir()
    torch.save(_network().state_dict(), folder / "old.pth", _use_new_zipfile_serialization=False)
    return Sample(folder / "old.pth", load_checkpoint)


def safetensors_file(folder: Path) -> Sample:
    space, path = WeightSpace.mlp([3, 4, 2], "relu"), folder / "a.safetensors"
    save_safetensors({name: torch.randn(1, 1, *shape) for name, shape in space.shapes().items()}, path, space)
    return Sample(path, functools.partial(load_safetensors, space=space))


def sharded_checkpoint(folder: Path) -> Sample:
    folder.mkdir()
    state, path = _network().state_dict(), folder / "model.safetensors.index.json"
    parts = {"model-1.safetensors": list(state)[:3], "model-2.safetensors": list(state)[3:]}
    for name, keys in parts.items():
        save_file({key: state[key] for key in keys}, folder / name, {"format": "pt"})
    places = {key: name for name, keys in parts.items() for key in keys}
    write_json(path, {"metadata": {"total_size": 100}, "weight_map": places})
    return Sample(path, read_checkpoint, victims=(path, *(folder / name for name in parts)))


def sharded_torch_checkpoint(folder: Path) -> Sample:
    folder.mkdir()
    state, path = _network().state_dict(), folder / "pytorch_model.bin.index.json"
    parts = {"pytorch_model-1.bin": list(state)[:3], "pytorch_model-2.bin": list(state)[3:]}
    for name, keys in parts.items():
        writers.save({key: state[key] for key in keys}, folder / name)
    write_json(path, {"weight_map": {key: name for name, keys in parts.items() for key in keys}})
    return Sample(path, read_checkpoint, victims=(path, *(folder / name for name in parts)))


def torch_checkpoint(folder: Path) -> Sample:
    """As the commands for networks of one's own read it."""
    content = {"epoch": 3, "state": _network().state_dict(), "optimizer": {}, "args": Namespace(rate=0.1)}
    writers.save(content, folder / "a.pth")
    return Sample(folder / "a.pth", read_checkpoint)


def whole_module(folder: Path) -> Sample:
    writers.save({"model": _network(), "args": Namespace(rate=0.1)}, folder / "a.pt")
    return Sample(folder / "a.pt", read_checkpoint)


def shipped_predictor(folder: Path) -> Sample:
    folder.mkdir()
    return Sample(Path(shutil.copy(SHIPPED, folder)), Predictor.load, sealed=True)


def finished_run(folder: Path) -> Sample:
    """A piece of a store; damage makes it start anew, of which a warning tells."""
    store, run = RunStore(folder), made_up_run()
    store.save(run, {"weight": torch.randn(3)}, {"image": torch.randn(2, 2)}, {})
    return Sample(store.run_file(run.settings), lambda path: RunStore(path.parents[1]).load(run.settings))


def unfinished_run(folder: Path) -> Sample:
    """Likewise."""
    saved = UnfinishedTraining(folder / "run")
    saved.save({"model": {"weight": torch.randn(3)}, "epoch": 1, "random": torch.get_rng_state()})
    return Sample(saved.file, lambda path: UnfinishedTraining(path.with_suffix("")).load())


def program(folder: Path) -> Sample:
    folder.mkdir()
    torch.export.save(torch.export.export(_network().eval(), (torch.randn(2, 3),)), folder / "net.pt2")
    return Sample(folder / "net.pt2", lambda file: read_definition(str(file)))


SAMPLES: dict[str, Callable[[Path], Sample]] = {
    made.__name__: made
    for made in (
        nfn_sirens, dws_mnist, dws_fashion, checkpoints_csv, checkpoints_json, published_zoo, made_zoo, made_inrs,
        torch_file, legacy_torch_file, safetensors_file, sharded_checkpoint, sharded_torch_checkpoint,
        torch_checkpoint, whole_module, shipped_predictor, finished_run, unfinished_run, program,
    )
}  # fmt: skip


def make(name: str, folder: Path) -> Sample:
    """The sample, always the same, with the files that are damaged."""
    torch.manual_seed(0)
    random.seed(0)
    sample = SAMPLES[name](folder / name)
    files = [sample.path] if sample.path.is_file() else sorted(p for p in sample.path.rglob("*") if p.is_file())
    return sample._replace(victims=sample.victims or tuple(files))
