"""Classifying INRs: preparation, metrics, learning on a toy corpus, reports, and the command from end to end."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.experiments.classify import ClassifyConfig, InputConfig, Sizes
from nfn_monomial.benchmarks.models.inr import SineNetwork, inr_info
from nfn_monomial.benchmarks.models.inr_input import Classifier, Warp, prepared_siren
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies.classify import (
    classify_inrs,
    classify_report,
    confusion,
    kept,
    plan,
    scores,
    sizes_of,
    subset,
)
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import test, train
from nfn_monomial.nn import InputNorm
from nfn_monomial.tools.predictors.models import build_model

SIREN = Siren((2, 4, 4, 1), 5.0, (1, 6, 6))
TINY = Sizes(hidden=4, width=8, attention=8, head=16, fourier=8, fourier_scale=0.3, channels=8, rounds=2, probes=16)
QUICK = ClassifyConfig(models=("mlp",), sizes=TINY, training=TrainConfig(1, 32, 5e-3))


def part(count: int, seed: int, siren: Siren = SIREN) -> InrPart:
    """Random networks; the class is whether the image is bright, which the function tells."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {n: torch.randn(count, *shape, generator=generator) / 3 for n, shape in siren.space.shapes().items()}
    brightness = siren.render(tensors).mean((1, 2, 3))
    return InrPart(tensors, (brightness > 0.5).long(), torch.arange(count) // 2)


def toy(train: int = 256) -> InrCorpus:
    return InrCorpus("toy", SIREN, 2, part(train, 0), part(64, 1), part(64, 2))


def done(config: ClassifyConfig, corpus: InrCorpus) -> list[Run]:
    trials = (job.prepare(job.settings) for job in plan(config, corpus))
    return [test(trial, train(trial), None)[0] for trial in trials]


def test_every_network_that_is_right_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(QUICK, models=("inr-probes",), training=TrainConfig(1, 16, 5e-3))
    store = RunStore(tmp_path)
    (run,) = classify_inrs(toy(32), config, store)
    (outcomes,) = kept([run], store).values()
    assert set(outcomes.answers.ravel()) <= {0.0, 1.0}
    assert outcomes.drawn[0, 0] == pytest.approx(accuracy(run)["original"])
    original = store.artifacts(run.settings)["original: answers"]
    assert outcomes.answers[0].tolist() == original.tolist()
    changed = {"original: answers": 1 - original}  # of the test networks as they are, and of no others
    monkeypatch.setattr(store, "artifacts", lambda settings: changed)
    (others,) = kept([run], store).values()
    assert others.answers[0].tolist() == (1 - original).tolist()


def accuracy(run: Run) -> dict[str, float]:
    return {test.name: test.metrics["accuracy"] for test in run.tests}


def test_learns_what_the_function_tells_and_nothing_else() -> None:
    corpus = toy()
    config = replace(QUICK, models=("inr-probes", "inr-monomial-hnp"), training=TrainConfig(4, 16, 5e-3))
    runs = done(config, corpus)
    for run in runs:
        assert accuracy(run)["original"] > 0.7, run.settings.model
        # Neither moves nor phases change the image; the model sees that.
        assert accuracy(run)["moved"] == accuracy(run)["shifted"] == accuracy(run)["original"]
    report = classify_report(runs)
    assert set(report.figures) == {"confusion.png", "learning.png"}
    assert [row["model"] for row in report.results["rows"]] == [run.settings.model for run in runs]
    for row, run in zip(report.results["rows"], runs, strict=True):
        counts = torch.tensor(row["confusion"])
        assert counts.sum() == 64
        assert float(counts.diag().sum()) / 64 == pytest.approx(accuracy(run)["original"])
    shuffled = {name: getattr(corpus, name) for name in ("train", "val", "test")}
    for name, old in shuffled.items():
        order = torch.randperm(len(old), generator=torch.Generator().manual_seed(7))
        shuffled[name] = replace(old, labels=old.labels[order])
    (blind,) = done(replace(config, models=("inr-probes",)), replace(corpus, **shuffled))
    assert accuracy(blind)["original"] < 0.65


def networks(count: int) -> dict[str, Tensor]:
    return {name: t.unsqueeze(1).double() for name, t in part(count, 0).tensors.items()}


def rendered(siren: Siren, tensors: Mapping[str, Tensor]) -> Tensor:
    return siren.render({name: t.squeeze(1) for name, t in tensors.items()})


def classifier(name: str, config: InputConfig) -> Classifier:
    model = build_model(name, inr_info(prepared_siren(config, SIREN)), seed=0, out_features=2, **sizes_of(TINY, name))
    return Classifier(model, SIREN, config).double()


@pytest.mark.parametrize("absorb", [True, False])
@pytest.mark.parametrize("canonical", [True, False])
def test_preparation_keeps_images_and_does_what_it_says(absorb: bool, canonical: bool) -> None:
    stored = networks(8)
    config = InputConfig(absorb_omega=absorb, canonical_phase=canonical)
    brought = classifier("mlp", config).canonical(stored)
    torch.testing.assert_close(
        rendered(prepared_siren(config, SIREN), brought), rendered(SIREN, stored), rtol=1e-10, atol=1e-10
    )
    factor = SIREN.omega_0 if absorb else 1
    torch.testing.assert_close(brought["weight.1"].abs(), factor * stored["weight.1"].abs())
    phases = brought["bias.0"] * (SIREN.omega_0 / factor)
    assert bool((phases.abs() <= torch.pi / 2 + 1e-12).all()) == canonical


def test_warp_turns_and_shifts_the_image() -> None:
    stored, warp = networks(5), Warp(0.2)
    torch.manual_seed(0)
    warped = warp.train()(stored)
    drawn = torch.manual_seed(0) and 0.2 * (2 * torch.rand(4, 5, dtype=torch.float64) - 1)
    angle, zoom = 2 * drawn[0], drawn[1].exp()
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()], -1), torch.stack([angle.sin(), angle.cos()], -1)], 1)
    x = SIREN.coordinates(torch.float64)
    moved = x @ (zoom[:, None, None] * turn).mT + drawn[2:].T[:, None]
    module = SineNetwork(SIREN).double()
    for i in range(5):
        values = [
            torch.func.functional_call(
                module, dict(zip(dict(module.named_parameters()), (t[i, 0] for t in tensors.values()), strict=True)), at
            )
            for tensors, at in ((warped, x), (stored, moved[i]))
        ]
        torch.testing.assert_close(values[0], values[1], rtol=1e-10, atol=1e-10)
    assert all(torch.equal(warp.eval()(stored)[name], t) for name, t in stored.items())
    assert not torch.equal(warped["bias.0"], stored["bias.0"])


def test_classifier_augments_in_training_and_keeps_its_statistics() -> None:
    tripled = {name: 3 * t for name, t in networks(16).items()}
    for config in (InputConfig(augment=True), InputConfig(warp=0.1), InputConfig(augment=True, noise=0.1)):
        augmented, plain = classifier("inr-hnp", config), classifier("inr-hnp", InputConfig())
        before = augmented.eval()(tripled)
        augmented.fit_inputs(tripled)
        assert not torch.equal(before, augmented(tripled))
        plain.load_state_dict(augmented.state_dict())  # with the statistics
        assert torch.equal(plain.eval()(tripled), augmented(tripled))
        assert torch.equal(plain.train()(tripled), plain(tripled))
        assert not torch.equal(augmented.train()(tripled), augmented(tripled))
    assert isinstance(classifier("inr-hnp", InputConfig()).norm, InputNorm)
    assert not isinstance(classifier("inr-hnp", InputConfig(normalize=False)).norm, InputNorm)
    assert not isinstance(classifier("inr-probes", InputConfig()).norm, InputNorm), "its image would be another"


def test_scores() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    scored = scores(logits, torch.tensor([0, 1, 1]))
    assert scored["accuracy"] == pytest.approx(2 / 3)
    assert scored["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 1]))))
    surer = scores(2 * logits[:2], torch.tensor([0, 1]))
    sure = scores(logits[:2], torch.tensor([0, 1]))
    assert surer["selection"] > sure["selection"], "among equal accuracies the lower loss"
    # One more correct answer outweighs any loss.
    labels = torch.tensor([0, 0, 0])
    assert (
        scores(torch.tensor([[1e9, 0], [1, 0], [0, 1e9]]), labels)["selection"]
        > (scores(torch.tensor([[1.0, 0], [0, 0.1], [0, 0.1]]), labels)["selection"])
    )
    broken = torch.tensor([[torch.nan, 0.0], [torch.inf, 0.0], [torch.nan, torch.nan]])
    scored = scores(broken, torch.tensor([1, 0, 0]))
    assert scored["accuracy"] == 1.0
    assert all(abs(value) < 1e9 for value in scored.values())


def test_confusion_counts_by_true_and_predicted_class() -> None:
    logits = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [torch.nan, 0, 1]])
    assert confusion(logits, torch.tensor([0, 0, 1, 2])).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_a_limit_draws_networks_of_all_classes() -> None:
    """Corpora may be sorted by class; and all models get the same networks."""
    count = 200
    labels = torch.arange(count) // 20
    part = InrPart({"weight": torch.arange(count).float()}, labels, torch.arange(count))
    some = subset(part, None, 60)
    assert len(some) == 60
    assert set(some.labels.tolist()) == set(range(10))
    assert torch.equal(some.tensors["weight"], subset(part, 1, 60).tensors["weight"])
    assert torch.equal(some.tensors["weight"].long() // 20, some.labels)
    assert len(subset(part, None, count)) == count
