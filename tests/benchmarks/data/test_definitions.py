"""Networks of any architecture in a folder: the user names their class or program, and nobody else does."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from corpora import check_functions
from published_writers import Marker
from torch import nn

from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.tools.definitions.define import DefinitionError, read_definition

SOURCE = """
import torch
from torch import nn

class ResidualNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.inner, self.outer = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        return self.head((x + self.outer(self.inner(x).relu())).relu().mean((2, 3)))

def sized(width):
    return nn.Linear(width, 2)

LINEAR = nn.Linear(2, 2)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "my_networks.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def write_snapshots(folder: Path, build: Callable[[], nn.Module], count: int = 12) -> list[nn.Module]:
    """Networks of a class, with random statistics, in a folder each; of tied tensors a file has one."""
    made, lines = [], ["checkpoint,accuracy"]
    for n in range(count):
        network = build().eval()
        for name, buffer in network.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0) if "var" in name else buffer.normal_()
        kept = dict(network.named_parameters()) | dict(network.named_buffers())
        (folder / f"net-{n}").mkdir(parents=True)
        safetensors.torch.save_file(kept, folder / f"net-{n}" / "model.safetensors")
        made.append(network)
        lines.append(f"net-{n}/model.safetensors,{n / 100}")
    (folder / "targets.csv").write_text("\n".join(lines), encoding="utf-8")
    return made


def test_networks_of_a_class_in_a_file(tmp_path: Path, source: Path) -> None:
    net = f"{source}:ResidualNet"
    made = write_snapshots(tmp_path / "hub", type(read_definition(net, (1, 6, 6)).template()))
    (name, corpus), *_ = load_generalization(tmp_path / "hub", [f"net={net}", "input_shape=1,6,6"]).items()
    assert (name, corpus.source["net"], corpus.info.input_shape) == ("ResidualNet", net, (1, 6, 6))
    space = corpus.info.space
    assert {"norm.running_mean", "norm.running_var", "norm.weight"} <= set(space.parameters)
    assert space.group_dimension == 4 + 4 + 6, "in front of the norm and behind it, and inside of the block"
    check_functions(corpus, made, torch.randn(2, 1, 6, 6))


def test_networks_of_an_exported_program(tmp_path: Path, source: Path) -> None:
    build = read_definition(f"{source}:ResidualNet", (1, 6, 6)).template
    made = write_snapshots(tmp_path / "hub", build)
    program = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(build().eval(), (torch.randn(2, 1, 6, 6),)), program)
    corpus = load_generalization(tmp_path / "hub", net=str(program))["net.pt2"]
    space, same = corpus.info.space, read_definition(f"{source}:ResidualNet", (1, 6, 6)).space
    assert (space.nodes, space.parameters) == (same.nodes, same.parameters)
    check_functions(corpus, made, torch.randn(2, 1, 6, 6))


def poisoned(program: Path, marker: Path) -> None:
    """Put a pickle that creates a file in the place of a weight, and say in the archive that it is one."""
    with zipfile.ZipFile(program) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    weight = next(name for name in members if name.endswith("weights/weight_0"))
    config = next(name for name in members if name.endswith("weights_config.json"))
    entries = json.loads(members[config])
    for entry in entries["config"].values():
        entry["use_pickle"] |= entry["path_name"] == "weight_0"
    code = io.BytesIO()
    torch.save(Marker(marker), code)
    members |= {weight: code.getvalue(), config: json.dumps(entries).encode()}
    with zipfile.ZipFile(program, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_programs_run_code_so_none_is_read_that_the_user_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is `torch.export.load`; if it runs no code one day, this test fails."""
    marker, folder = tmp_path / "marker", tmp_path / "hub"
    write_snapshots(folder, lambda: nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    chain = "nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.randn(4, 2)"
    text = f"import torch\nfrom torch import nn\n\ndef chain():\n    return {chain}\n"
    (tmp_path / "my_chains.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    program = folder / "net-0" / "model.pt2"
    torch.export.save(torch.export.export(nn.Linear(2, 3), (torch.randn(4, 2),)), program)
    poisoned(program, marker)
    (folder / "net-0" / "model.py").write_text(f"open({str(marker)!r}, 'w')", encoding="utf-8")
    load_generalization(folder, net="my_chains:chain")
    assert not marker.exists()
    with pytest.raises(CorpusError, match=r"model\.pt2 cannot be used as an exported program"):
        load_generalization(folder, net=str(program))
    assert marker.exists(), "torch.export.load ran no code: programs beside weights could be trusted"


STATES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda s: s.pop("norm.weight"), r"of another architecture than ResidualNet: missing are norm\.weight$"),
    (lambda s: s.update({"norm.bias": torch.ones(5)}), r"of other shape: norm\.bias is \(5,\), not \(4,\) "),
    (
        lambda s: s["norm.running_var"].fill_(torch.inf),
        r"norm\.running_var holds NaN or infinite values: .*leave it out",
    ),
]


@pytest.mark.parametrize(("change", "message"), STATES)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, source: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    net = f"{source}:ResidualNet"
    folder = tmp_path / "hub"
    made = write_snapshots(folder, read_definition(net, (1, 6, 6)).template)
    state = dict(made[2].state_dict())
    change(state)
    safetensors.torch.save_file(
        state,
        folder / "net-2" / "model.safetensors",
    )
    with pytest.raises(CorpusError, match=rf"net-2/model\.safetensors: .*{message}"):
        load_generalization(folder, net=net, input_shape=(1, 6, 6))


NETS = [
    ("{here}/other.py:Net", r"other\.py: no such file"),
    ("{file}:Net", r"my_networks\.py has no class or function Net; its modules: ResidualNet"),
    ("{file}:sized", "sized cannot be called: .*'width'.*name a function that gives the others"),
    ("{file}:ResidualNet", r"give their shape \(--input 2,3,32,32, .*input_shape=3,32,32.*example_inputs\(\)"),
]


@pytest.mark.parametrize(("net", "message"), NETS)
def test_definitions_that_cannot_be_used(tmp_path: Path, source: Path, net: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        read_definition(net.format(here=tmp_path, file=source))
