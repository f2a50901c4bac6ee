"""Editing INRs from end to end: ground truth, honest scores, learning, what runs keep, the report, the command."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nfn_monomial.benchmarks.data.sirens import InrCorpus, InrPart, Siren
from nfn_monomial.benchmarks.experiments.edit import EditConfig, EditorConfig
from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.benchmarks.studies.edit import contrast, dilate, edit_inrs, edit_report, edit_table, kept, scores
from nfn_monomial.benchmarks.train.runs import Run, RunStore

SIREN = Siren((2, 8, 8, 1), 5.0, (1, 6, 7))
TINY = EditorConfig(inputs="canonical", fourier=8, fourier_scale=0.3, width=8, monomial=4, mlp=16, messages=8, blocks=2)
CONFIG = EditConfig(
    models=("np", "message-passing"), shown=2, editor=TINY, training=TrainConfig(epochs=2, batch_size=16)
)


def corpus(siren: Siren = SIREN, train: int = 48, others: int = 16) -> InrCorpus:
    """Networks near to one another, as those of digits are, which show what they show: no other images."""
    generator = torch.Generator().manual_seed(0)
    shapes = siren.space.shapes()
    base = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    parts = []
    for count in (train, others, others):
        tensors = {name: t + 0.05 * torch.randn(count, *t.shape, generator=generator) for name, t in base.items()}
        parts.append(InrPart(tensors, torch.zeros(count, dtype=torch.int64), torch.arange(count)))
    return InrCorpus("tiny", siren, 1, *parts)


def test_dilation_by_hand() -> None:
    image = torch.tensor([[0.9, 0, 0, 0], [0, 0, 0, 0.2], [0, 0, 0, 0], [0, 0, 0, 0.4]])
    expected = torch.tensor([[0.9, 0.9, 0.2, 0.2], [0.9, 0.9, 0.2, 0.2], [0, 0, 0.4, 0.4], [0, 0, 0.4, 0.4]])
    images = torch.stack([image, 1 - image])[:, None].repeat(1, 3, 1, 1)
    assert torch.equal(dilate(images)[0], expected.expand(3, 4, 4))
    assert torch.equal(dilate(images)[1], torch.ones(3, 4, 4))
    # Neither channels nor images run into one another.
    images[1:], images[0, 1:] = 0, 0
    assert dilate(images)[1:].sum() == dilate(images)[0, 1:].sum() == 0


def test_contrast_by_hand() -> None:
    image = torch.tensor([[0.4, 0.6], [0.0, 0.6]])[None, None]  # mean 0.4
    torch.testing.assert_close(contrast(image), torch.tensor([[[[0.4, 0.8], [0.0, 0.8]]]]))
    red = torch.zeros(1, 3, 1, 2)
    red[0, 0] = torch.tensor([0.2, 0.6])  # grey 0.299 times as much
    expected = (2 * red - 0.299 * 0.4).clamp(0, 1)
    torch.testing.assert_close(contrast(red), expected)


def test_scores() -> None:
    images, targets = torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.1)
    scored = scores(images, targets)
    assert scored["mse"] == pytest.approx(0.01)
    assert scored["psnr"] == pytest.approx(20)
    images[0, 0, 0, 0] = torch.nan
    assert scores(images, targets)["mse"] == pytest.approx(1e12 / 8)
    images[0, 0, 0, 0] = torch.inf
    assert scores(images, targets)["psnr"] < -100
    assert scores(targets, targets)["psnr"] == 300


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Run], RunStore]:
    """NP and message passing, trained until they have learned something."""
    store = RunStore(tmp_path_factory.mktemp("edit"))
    config = replace(CONFIG, training=TrainConfig(epochs=8, batch_size=8, learning_rate=5e-3))
    return edit_inrs(corpus(), config, store), store


def test_editors_learn_and_runs_keep_what_the_figure_needs(done: tuple[list[Run], RunStore]) -> None:
    data, (runs, store) = corpus(), done
    images = data.siren.render(data.test.tensors)
    target = dilate(images.clamp(0, 1))
    unedited = float((images - target).square().mean())
    for run in runs:
        original, moved = run.tests
        assert (original.name, moved.name) == ("original", "moved")
        assert run.extra["unedited"]["mse"] == pytest.approx(unedited, rel=1e-5)
        assert original.metrics["mse"] < 0.7 * unedited, run.label
        stored = store.artifacts(run.settings)
        assert set(stored) == {"unedited", "target", "edited", "moved", "original: answers", "moved: answers"}
        assert float(stored["original: answers"].mean()) == pytest.approx(original.metrics["mse"], rel=1e-5)
        assert all(t.shape == (2, 1, 6, 7) for name, t in stored.items() if "answers" not in name)
        assert run.extra["shown"] == [0, 15]
        torch.testing.assert_close(stored["target"], target[[0, 15]], atol=1e-6, rtol=0)
        torch.testing.assert_close(stored["unedited"], images[[0, 15]], atol=1e-6, rtol=0)
    np_run, message = runs
    assert message.tests[1].metrics["mse"] == pytest.approx(message.tests[0].metrics["mse"], rel=1e-3)
    assert np_run.tests[1].metrics["mse"] > 1.01 * np_run.tests[0].metrics["mse"]
    edited, moved = (store.artifacts(message.settings)[name] for name in ("edited", "moved"))
    torch.testing.assert_close(edited, moved, atol=1e-4, rtol=0)


def test_errors_are_kept_network_by_network(done: tuple[list[Run], RunStore]) -> None:
    found = kept(*done)
    assert set(found) == {("tiny", (run.label,), "MSE") for run in done[0]}
    for run in done[0]:
        outcomes = found["tiny", (run.label,), "MSE"]
        assert outcomes.drawn[0, 0] == pytest.approx(run.metric("original", "mse"), rel=1e-5)
        assert outcomes.steps == len(run.history) * -(-run.networks["train"] // 8)


def test_report(done: tuple[list[Run], RunStore]) -> None:
    runs, store = done
    report = edit_report(runs, store)
    assert list(report.figures) == ["edits.png", "learning.png"]
    edits = report.figures["edits.png"]
    rows, wide = 2 + 1, 2 + 2
    assert len(edits.axes) == rows * wide
    kept = store.artifacts(runs[0].settings)
    shown = [ax.get_images()[0].get_array() for ax in edits.axes]
    for name, pictures in {"unedited": shown[0::wide], "target": shown[1::wide], "edited": shown[2::wide]}.items():
        for i, picture in enumerate(pictures[:2]):
            np.testing.assert_array_equal(picture, kept[name][i, 0].clamp(0, 1).numpy(), err_msg=name)
    table = edit_table(runs)
    assert [line[0] for line in table.cells] == ["no edit", "NP", "Message passing"]
    assert table.bold == {2}
    assert f"{runs[0].extra['unedited']['mse']:.4f}" == table.cells[0][3]


def test_the_level_without_an_edit_is_of_the_networks_of_the_curves(done: tuple[list[Run], RunStore]) -> None:
    data, (runs, store) = corpus(), done
    images = data.siren.render(data.val.tensors)
    unedited = float((images - dilate(images.clamp(0, 1))).square().mean())
    (ax,) = edit_report(runs, store).figures["learning.png"].axes
    (level,) = (line for line in ax.lines if line.get_label() == "no edit")
    assert level.get_ydata()[0] == pytest.approx(unedited, rel=1e-5)
    before = [replace(run, extra={"unedited": run.extra["unedited"]}) for run in runs]
    (ax,) = edit_report(before, store).figures["learning.png"].axes
    assert "no edit" not in [line.get_label() for line in ax.lines], "of runs that did not keep it"


def test_a_task_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    black = replace(corpus(), pixels=torch.zeros(48, 1, 6, 7))
    with pytest.raises(ValueError, match="dilate leaves the images of tiny as they are"):
        edit_inrs(black, CONFIG, RunStore(tmp_path))
    checkers = torch.zeros(48, 1, 6, 7)
    checkers[:, :, ::2] = 1
    with pytest.raises(ValueError, match="contrast leaves the images of tiny as they are"):
        edit_inrs(replace(corpus(), pixels=checkers), replace(CONFIG, task="contrast"), RunStore(tmp_path))
