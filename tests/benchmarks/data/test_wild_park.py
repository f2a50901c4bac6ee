"""The CNN Wild Park in its published format, whole and damaged."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import parts, template_outputs
from published_writers import Marker, WildCnn, save, save_as_omegaconf, truncate, wild_config, write_wild_park

from nfn_monomial import EquivariantLinear, WeightSpace
from nfn_monomial.adapters.modules import network_outputs
from nfn_monomial.benchmarks.data.formats.base import CorpusError
from nfn_monomial.benchmarks.data.formats.detection import load_generalization
from nfn_monomial.benchmarks.data.moves import test_sets, transform, widened
from nfn_monomial.benchmarks.data.networks import Corpus, Part, groups_of
from nfn_monomial.benchmarks.models import graphs  # noqa: F401
from nfn_monomial.testing import assert_equivariant
from nfn_monomial.tools.predictors.models import NetworkInfo, build_model

BAD = torch.full((4,), float("inf"))

CONFIGS = [
    wild_config([4, 5], [3, 5], ["relu", "relu"]),
    wild_config([4, 5], [3, 5], ["tanh", "none"]),
    wild_config([4, 6, 5], [3, 7, 3], ["leaky_relu", "gelu", "sigmoid"]),
]
TIED = wild_config([4, 6, 4], [3, 5, 3], ["relu", "tanh", "none"], [-1, -1, 0])
UNEVEN = wild_config([4, 6, 8], [3, 5, 3], ["relu"] * 3, [-1, -1, 0])
CROSSED = wild_config([8, 4, 4, 8, 16], [3] * 5, ["relu", "tanh", "none", "tanh", "relu"], [-1, -1, 0, 1, 0])


@pytest.fixture
def park(tmp_path: Path) -> Path:
    write_wild_park(tmp_path, CONFIGS * 7)
    return tmp_path


def wild_outputs(part: Part, network: WildCnn, x: torch.Tensor) -> torch.Tensor:
    """What the networks of a part answer as a module of theirs runs them."""
    keys = [name for name, _ in network.named_parameters()]
    tensors = dict(zip(keys, (t.unsqueeze(1) for t in part.networks.tensors.values()), strict=True))
    return network_outputs(network, tensors, x)


def check_functions(corpus: Corpus, made: Mapping[Path, WildCnn]) -> int:
    """Compare every network, as it is, moved by its group and widened, with the module it was written from."""
    x = torch.randn(2, 3, 9, 9)
    networks = list(made.values())
    for part in parts(corpus):
        own = [networks[round(1000 * a)] for a in part.networks.accuracy.tolist()]
        with torch.no_grad():
            outputs = torch.stack([network(x) for network in own])
        torch.testing.assert_close(wild_outputs(part, own[0], x), outputs)
        torch.testing.assert_close(template_outputs(part, x), outputs)
        for turned in (transform((part,), 10.0, seed=2)[0], widened((part,), 1.5, seed=3)[0]):
            torch.testing.assert_close(wild_outputs(turned, own[0], x), outputs, atol=1e-4, rtol=1e-4)
    return sum(map(len, parts(corpus)))


def test_wild_networks_are_grouped_and_compute_what_they_did(tmp_path: Path) -> None:
    made = write_wild_park(tmp_path, CONFIGS * 7)
    corpus = load_generalization(tmp_path)["mixed"]
    assert corpus.mixed
    assert check_functions(corpus, made) == 21
    spaces = {info.activation: info.space for info in corpus.info.architectures}
    groups = {
        name: [str(node.symmetry) for node in space.nodes.values()][1:-1] for name, space in spaces.items()
    }  # fmt: skip
    assert groups == {
        "relu": ["SCALE", "SCALE"],
        "tanh/none": ["SIGN", "MONOMIAL"],
        "leaky_relu/gelu/sigmoid": ["SCALE", "PERMUTATION", "PERMUTATION"],
    }
    assert (corpus.source["architectures"], corpus.source["residual"]) == (3, 0)


def test_mixed_models_read_the_park(park: Path) -> None:
    corpus = load_generalization(park)["mixed"]
    model = build_model("gnn", corpus.info, seed=0).eval()
    answers = [model(model.prepare_groups(groups_of(test.parts))) for test in test_sets(corpus, (10.0,), 1.5, 0)]
    assert [len(answer) for answer in answers] == [3, 3, 3]


@pytest.mark.parametrize("name", ["gnn", "monomial-conv", "stats-set"])
def test_mixed_models_read_residual_networks(name: str, tmp_path: Path) -> None:
    write_wild_park(tmp_path, [TIED, UNEVEN, CROSSED, *CONFIGS] * 4)
    corpus = load_generalization(tmp_path)["mixed"]
    model = build_model(name, corpus.info, seed=0).eval()
    answers = [model(model.prepare_groups(groups_of(test.parts))) for test in test_sets(corpus, (1e4,), 0, 0)]
    assert len({len(answer) for answer in answers}) == 1
    if name != "gnn":  # which knows permutations alone
        torch.testing.assert_close(answers[1], answers[0], rtol=1e-2, atol=1e-3)


def test_one_architecture_is_no_mixture(tmp_path: Path) -> None:
    write_wild_park(tmp_path, CONFIGS[:1] * 5)
    assert isinstance(load_generalization(tmp_path)["mixed"].info, NetworkInfo)


def test_residual_networks_load_whatever_their_widths(tmp_path: Path) -> None:
    one_more = wild_config([4, 6, 5], [3, 5, 3], ["relu"] * 3, [-1, -1, 0])  # which is a factor on whole tensors
    made = write_wild_park(tmp_path, [TIED] * 5 + [UNEVEN] * 4 + [CROSSED] * 4 + [one_more] * 4)
    corpus = load_generalization(tmp_path)["mixed"]
    assert check_functions(corpus, made) == 17
    assert (corpus.source["architectures"], corpus.source["residual"]) == (4, 4)


def groups_in(space: WeightSpace) -> dict[str, tuple[str, int | None]]:
    return {name: (str(node.symmetry), node.size) for name, node in space.nodes.items()}


def test_channels_that_a_residual_connection_adds_are_one_node(tmp_path: Path) -> None:
    write_wild_park(tmp_path, [TIED] * 4)
    space = load_generalization(tmp_path)["mixed"].info.space
    ends = {"x": ("FIXED", 3), "y": ("FIXED", 10)}
    assert groups_in(space) == ends | {"layers_0": ("SCALE", 4), "layers_1": ("SIGN", 6)}
    assert_equivariant(EquivariantLinear(space, 1, 2).double(), space)


@pytest.mark.parametrize(("config", "groups", "described"), [
    (UNEVEN, [("SCALE", 4), ("SCALE", 6), ("SCALE", 4)], "layers_0=4 + layers_2_1=4, layers_1=6, 3, 3"),
    (CROSSED, [("SCALE", 4), ("SCALE", 4), ("SIGN", 4), ("SIGN", 4), ("SCALE", 8)],
     "layers_0_0=4 + layers_0_1=4 + layers_4_2=8, layers_1=4 + layers_3_1=4, 3, 3"),
])  # fmt: skip
def test_layers_of_different_widths_share_their_first_channels(
    tmp_path: Path, config: dict[str, Any], groups: list[tuple[str, int]], described: str
) -> None:
    """Added are the first channels of both; those that only one has keep a node of their own."""
    write_wild_park(tmp_path, [config] * 4)
    space = load_generalization(tmp_path)["mixed"].info.space
    assert list(groups_in(space).values())[1:-1] == groups
    last = list(space.parameters)[-4]
    assert space.describe(last) == f"{last} (B, C, {described})"


def test_untied_layers_would_change_the_function(tmp_path: Path) -> None:
    """The negative twin: the group of the chain without its residual connection is too large."""
    write_wild_park(tmp_path / "residual", [TIED] * 6)
    chain = wild_config([4, 6, 4], [3, 5, 3], ["relu", "tanh", "none"])
    network = WildCnn(TIED)
    write_wild_park(tmp_path / "chains", [chain] * 6)
    part = load_generalization(tmp_path / "residual")["mixed"].train[0]
    wrong = Part(part.networks, load_generalization(tmp_path / "chains")["mixed"].info)
    x = torch.randn(2, 3, 9, 9)
    moved = transform((wrong,), 10.0, seed=2)[0]
    assert (wild_outputs(moved, network, x) - wild_outputs(part, network, x)).abs().max() > 1e-2


def test_checkpoints_of_one_network_are_in_one_part(tmp_path: Path) -> None:
    for n in range(6):
        write_wild_park(tmp_path / f"trial-{n}", CONFIGS[:1] * 3, start=10 * n)
        for path in (tmp_path / f"trial-{n}").iterdir():
            path.rename(path.with_name(f"checkpoint_{path.name}"))
    corpus = load_generalization(tmp_path)["mixed"]
    found = [{round(1000 * a) // 10 for p in own for a in p.networks.accuracy.tolist()} for own in
             (corpus.train, corpus.val, corpus.test)]  # fmt: skip
    assert (sorted(map(len, found)), set.union(*found)) == ([1, 1, 4], set(range(6)))


def rewrite(**changes: Any) -> Callable[[Path], None]:
    """Change entries of the config, or (with a slash in the value's key) of the whole checkpoint."""

    def change(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        for name, value in changes.items():
            (content if name in content else content["config"])[name] = value
        torch.save(content, path)

    return change


PARK_DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "is damaged"),
    (
        lambda p: save(WildCnn(CONFIGS[0]).state_dict(), p),
        "has entries layers.0.weight, .* expected dicts model, config",
    ),
    (rewrite(n_layers=3), "n_layers in config is 3, but there are 2 layers"),
    (rewrite(channels=[4, 6]), r"channels in config is \[4, 6\], expected \[4, 5\], as the weights have"),
    (rewrite(channels=[1, 4]), r"channels in config is \[1, 4\], expected \[4, 5\], as the weights have"),
    (rewrite(stride=2), r"stride in config is 2, expected \[1, 1\], as"),
    (rewrite(kernel_size=[3]), r"kernel_size in config is \[3\], expected \[3, 5\]"),
    (rewrite(residual=[-1, 1]), r"residual in config is \[-1, 1\], expected an earlier layer or -1"),
    (rewrite(residual=[-1]), r"residual in config is \[-1\], expected one for each of 2 layers"),
    (rewrite(activation="swoosh"), "activation swoosh is not known"),
    (rewrite(last_result={}), r"last_result\['test/acc'\] is None, expected an accuracy"),
    (rewrite(last_result=None), "has entries model, config, last_result, expected dicts"),
    (rewrite(model={"layers.0.weight": BAD}), r"layers\.0\.weight has shape \(4,\), expected \(out, in\)"),
    (rewrite(model={"fc.weight": torch.ones(2, 2), "fc.bias": torch.ones(2)}), r"layers fc, expected layers\.0"),
]


@pytest.mark.parametrize(("damage", "message"), PARK_DAMAGES)
def test_damaged_wild_networks_are_named(park: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(park / "00003" / "checkpoint.pt")
    with pytest.raises(CorpusError, match=rf"00003/checkpoint\.pt:? {message}"):
        load_generalization(park)


def test_one_setting_may_stand_for_all_layers(tmp_path: Path) -> None:
    for path in write_wild_park(tmp_path, [wild_config([4, 4], [3, 3], ["tanh", "tanh"])] * 4):
        rewrite(channels=4, kernel_size=3, residual=-1, activation="tanh", stride=1)(path)
    assert load_generalization(tmp_path)["mixed"].info.activation == "tanh"


def test_code_in_a_wild_config_is_refused(park: Path, tmp_path: Path) -> None:
    save({"model": {}, "config": Marker(tmp_path / "marker"), "last_result": {}}, park / "00003" / "checkpoint.pt")
    with pytest.raises(CorpusError, match=r"00003/checkpoint\.pt has entries .*, expected dicts model, config"):
        load_generalization(park)
    assert not (tmp_path / "marker").exists()


def test_configurations_of_omegaconf_are_read_without_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the published checkpoints have them; no package that a file names is imported, were there one."""
    folder = tmp_path / "park"
    made = write_wild_park(folder, [TIED, UNEVEN] * 3)
    before = load_generalization(folder)["mixed"]
    (tmp_path / "omegaconf.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for path in made:
        save_as_omegaconf(torch.load(path, weights_only=True), path)
    after = load_generalization(folder)["mixed"]
    assert not (tmp_path / "marker").exists()
    assert [part.info.space for part in parts(after)] == [part.info.space for part in parts(before)]
    assert check_functions(after, made) == 6
