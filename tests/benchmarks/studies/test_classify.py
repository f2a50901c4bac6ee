"""Classifying INRs: preparation, metrics, learning on a toy corpus, reports, and the command from end to end."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up_runs import made_up_run
from on_disk import OnDisk
from runs_alike import assert_same_results
from torch import Tensor

from nfn_monomial.benchmarks.data import batches
from nfn_monomial.benchmarks.data.rows import TensorRows
from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.experiments.classify import CLASSIFY as PRESETS
from nfn_monomial.benchmarks.experiments.classify import ClassifyConfig, InputConfig, Sizes
from nfn_monomial.benchmarks.models.inr import SineNetwork, inr_info
from nfn_monomial.benchmarks.models.inr_input import Classifier, Warp, prepared_siren
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies.classify import (
    classify_inrs,
    classify_table,
    confusion,
    draw_confusion,
    fingerprint,
    plan,
    prepare,
    scores,
    sizes_of,
    subset,
)
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import run_job
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
    return InrPart(TensorRows(tensors), (brightness > 0.5).long(), torch.arange(count) // 2)


def toy(train: int = 256) -> InrCorpus:
    return InrCorpus("toy", SIREN, 2, part(train, 0), part(64, 1), part(64, 2))


def done(config: ClassifyConfig, corpus: InrCorpus) -> list[Run]:
    return [run_job(job).run for job in plan(config, corpus)]


def accuracy(run: Run) -> dict[str, float]:
    return {test.name: test.metrics["accuracy"] for test in run.tests}


def test_learns_what_the_function_tells_and_nothing_else() -> None:
    corpus = toy()
    config = replace(QUICK, models=("inr-probes", "inr-monomial-hnp"), training=TrainConfig(4, 16, 5e-3))
    for run in done(config, corpus):
        assert accuracy(run)["original"] > 0.7, run.settings.model
        # Neither moves nor phases change the image; the model sees that.
        assert accuracy(run)["moved"] == accuracy(run)["shifted"] == accuracy(run)["original"]
        best = max(run.history, key=lambda epoch: epoch["metrics"]["selection"])
        assert run.best_epoch == best["number"]
        assert run.val == best["metrics"]
    shuffled = {name: getattr(corpus, name) for name in ("train", "val", "test")}
    for name, old in shuffled.items():
        order = torch.randperm(len(old), generator=torch.Generator().manual_seed(7))
        shuffled[name] = replace(old, labels=old.labels[order])
    (blind,) = done(replace(config, models=("inr-probes",)), replace(corpus, **shuffled))
    assert accuracy(blind)["original"] < 0.65


def test_shifted_phases_are_seen_where_they_are_not_made_canonical() -> None:
    config = replace(QUICK, models=("inr-monomial-hnp",), training=TrainConfig(4, 32, 5e-3))
    canonical, raw = (done(replace(config, inputs=InputConfig(canonical_phase=c)), toy())[0] for c in (True, False))
    losses = [{test.name: test.metrics["loss"] for test in run.tests} for run in (canonical, raw)]
    assert losses[0]["shifted"] == pytest.approx(losses[0]["original"], rel=1e-4)
    assert losses[1]["shifted"] != pytest.approx(losses[1]["original"], rel=1e-4)
    for found in losses:
        assert found["moved"] == pytest.approx(found["original"], rel=1e-4)


def networks(count: int) -> dict[str, Tensor]:
    return {name: t.unsqueeze(1).double() for name, t in part(count, 0).rows.read_all().items()}


def rendered(siren: Siren, tensors: Mapping[str, Tensor]) -> Tensor:
    return siren.render({name: t.squeeze(1) for name, t in tensors.items()})


def classifier(name: str, config: InputConfig) -> Classifier:
    model = build_model(name, inr_info(prepared_siren(config, SIREN)), seed=0, out_features=2, **sizes_of(TINY, name))
    return Classifier(model, SIREN, config).double()


@pytest.mark.parametrize("absorb", [True, False])
@pytest.mark.parametrize("canonical", [True, False])
def test_preparation_keeps_images_and_does_what_it_says(absorb: bool, canonical: bool) -> None:
    given = networks(8)
    config = InputConfig(absorb_omega=absorb, canonical_phase=canonical)
    found = classifier("mlp", config).canonical(given)
    torch.testing.assert_close(
        rendered(prepared_siren(config, SIREN), found), rendered(SIREN, given), rtol=1e-10, atol=1e-10
    )
    factor = SIREN.omega_0 if absorb else 1
    torch.testing.assert_close(found["weight.1"].abs(), factor * given["weight.1"].abs())
    phases = found["bias.0"] * (SIREN.omega_0 / factor)
    assert bool((phases.abs() <= torch.pi / 2 + 1e-12).all()) == canonical


def test_warp_turns_and_shifts_the_image() -> None:
    given, warp = networks(5), Warp(0.2)
    torch.manual_seed(0)
    warped = warp.train()(given)
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
            for tensors, at in ((warped, x), (given, moved[i]))
        ]
        torch.testing.assert_close(values[0], values[1], rtol=1e-10, atol=1e-10)
    assert all(torch.equal(warp.eval()(given)[name], t) for name, t in given.items())
    assert not torch.equal(warped["bias.0"], given["bias.0"])


def test_classifier_augments_in_training_and_keeps_its_statistics() -> None:
    given = {name: 3 * t for name, t in networks(16).items()}
    for config in (InputConfig(augment=True), InputConfig(warp=0.1), InputConfig(augment=True, noise=0.1)):
        augmented, plain = classifier("inr-hnp", config), classifier("inr-hnp", InputConfig())
        before = augmented.eval()(given)
        augmented.fit_inputs(given)
        assert not torch.equal(before, augmented(given))
        plain.load_state_dict(augmented.state_dict())  # with the statistics
        assert torch.equal(plain.eval()(given), augmented(given))
        assert torch.equal(plain.train()(given), plain(given))
        assert not torch.equal(augmented.train()(given), augmented(given))
    assert isinstance(classifier("inr-hnp", InputConfig()).norm, InputNorm)
    assert not isinstance(classifier("inr-hnp", InputConfig(normalize=False)).norm, InputNorm)
    assert not isinstance(classifier("inr-probes", InputConfig()).norm, InputNorm), "its image would be another"


def test_networks_on_disk_are_read_in_batches_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BUFFER_BYTES", 0)  # larger ones hold several of such small batches
    corpus = toy(128)
    on_disk = OnDisk(corpus.train.rows)
    streamed = replace(corpus, train=replace(corpus.train, rows=on_disk))
    config = replace(
        QUICK, models=("inr-hnp",), inputs=InputConfig(augment=True), limit=96, training=TrainConfig(2, 16, 1e-3)
    )
    assert fingerprint(streamed) == fingerprint(corpus)
    ((memory,), (disk,)) = done(config, corpus), done(config, streamed)
    assert_same_results(disk.tests, memory.tests)
    trial = prepare(streamed, plan(config, streamed)[0].settings)
    on_disk.most = 0
    assert len(list(trial.train.read(torch.arange(96).split(16)))) == 6
    assert on_disk.most == 16
    assert memory.networks == disk.networks == {"train": 96, "val": 64, "test": 64}


def test_scores() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    found = scores(logits, torch.tensor([0, 1, 1]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 1]))))
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
    found = scores(broken, torch.tensor([1, 0, 0]))
    assert found["accuracy"] == 1.0
    assert all(abs(value) < 1e9 for value in found.values())


def test_confusion_counts_by_true_and_predicted_class() -> None:
    logits = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [torch.nan, 0, 1]])
    assert confusion(logits, torch.tensor([0, 0, 1, 2])).tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_subset_by_fits_and_number() -> None:
    whole = InrPart(part(6, 0).rows, torch.arange(6), torch.tensor([3, 1, 3, 3, 1, 0]))
    assert subset(whole, None, None).rows is whole.rows
    assert subset(whole, 1, None).labels.tolist() == [0, 1, 5]
    assert subset(whole, 2, None).labels.tolist() == [0, 1, 2, 4, 5]
    chosen = subset(whole, 2, 3)
    assert chosen.labels.tolist() == [0, 1, 2]
    assert torch.equal(chosen.rows.read_all()["weight.0"], whole.rows.read_all()["weight.0"][:3])
    with pytest.raises(ValueError, match="limit is 4, but there are 3 networks"):
        subset(whole, 1, 4)


def test_settings_hold_what_determines_a_result_and_no_more() -> None:
    corpus = toy(64)

    def names(**changes: object) -> list[str]:
        config = replace(QUICK, models=("inr-np", "inr-monomial-np"), **changes)  # type: ignore[arg-type]
        return [job.settings.name for job in plan(config, corpus)]

    base = names()
    assert len(set(base)) == 2
    deeper = names(sizes=replace(TINY, hidden=6))  # which NP does not have
    assert deeper[0] == base[0]
    assert deeper[1] != base[1]
    for change in ({"inputs": InputConfig(warp=0.1)}, {"limit": 8}, {"fits": 1}, {"loss": "bce"}, {"steps": 5}):
        assert not set(names(**change)) & set(base), change
    other = replace(corpus, train=replace(corpus.train, labels=1 - corpus.train.labels))
    assert fingerprint(other) != fingerprint(corpus)


def test_paper_presets_are_table_20() -> None:
    expected = {
        "paper": (64, 1000, 0.1, 7.5e-5),
        "paper-fashion": (64, 500, 0.0, 1e-4),
        "paper-cifar": (16, 1000, 0.0, 1e-4),
    }
    for name, (hidden, head, dropout, rate) in expected.items():
        config = PRESETS[name]
        assert (config.sizes.hidden, config.sizes.head, config.sizes.dropout) == (hidden, head, dropout)
        assert (config.sizes.width, 2 * config.sizes.fourier) == (256, 256)
        assert (config.training.learning_rate, config.training.batch_size) == (rate, 32)
        assert (config.loss, config.steps, len(config.seeds)) == ("bce", 200_000, 5)
        assert config.inputs == InputConfig(False, False, False), "as they come"
    (job,) = plan(replace(PRESETS["paper"], models=("mlp",), seeds=(0,)), toy(100))
    assert job.settings.training.epochs == 50_000  # 4 steps each


def test_bad_inputs() -> None:
    with pytest.raises(ValueError, match="without augment=true"):
        InputConfig(noise=0.1)
    with pytest.raises(ValueError, match="warp is 2"):
        InputConfig(warp=2)


def test_one_class_is_no_task(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="toy has 1 class"):
        classify_inrs(replace(toy(8), classes=1), QUICK, RunStore(tmp_path))


def test_confusion_figure() -> None:
    runs = [
        made_up_run(model, seed, extra={"confusion": [[3, 1], [0, 4]]}, invariant_under=under)
        for model, under in (("np", "permutations"), ("mnf", "group"))
        for seed in (0, 1)
    ]
    figure = draw_confusion(runs)
    assert [(ax.get_title(), ax.title.get_fontweight()) for ax in figure.axes] == [
        ("NP: 50.0 ±0.0 %", "normal"), ("MNF: 50.0 ±0.0 %", "bold"),
    ]  # fmt: skip
    for ax in figure.axes:
        (image,) = ax.get_images()
        assert image.get_array().tolist() == [[0.75, 0.25], [0, 1]], "shares of every row, over both seeds"
        assert [(t.get_position(), t.get_text()) for t in ax.texts] == [
            ((0, 0), "75"), ((1, 0), "25"), ((1, 1), "100"),
        ]  # fmt: skip
    assert "standard error over seeds (2)" in figure.get_supxlabel()
    assert figure.get_supylabel() == "class of the image"


def test_slower_models_have_a_third_of_the_learning_rate_and_the_table_says_so() -> None:
    config = replace(QUICK, models=("mlp", "statnn", "inr-probes"), slower=("statnn",))
    jobs = plan(config, toy(32))
    assert [job.settings.training.learning_rate for job in jobs] == [5e-3, 5e-3 / 3, 5e-3]
    notes = classify_table([run_job(job).run for job in jobs]).notes
    assert any("Learning rate: 0.005; 0.00166667 for STATNN." in note for note in notes)
