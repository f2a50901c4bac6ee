"""Runs as Lightning, Hugging Face's Trainer and a plain loop write them: each command reads them as they lie."""

import csv
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import normed_net
import pytest
import torch
from invoking import invoke, said
from normed_net import Net, data
from torch import Tensor, nn

pytestmark = [pytest.mark.networks, pytest.mark.filterwarnings("ignore")]

RUNS, EPOCHS = 8, 2


def loader(seed: int) -> Any:
    order = torch.Generator().manual_seed(seed)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), 15, shuffle=True, generator=order)


def loss_of(net: nn.Module) -> float:
    with torch.no_grad():
        x, y = data(1)
        return float(nn.functional.cross_entropy(net.eval()(x), y))


def by_lightning(folder: Path) -> list[dict[str, Any]]:
    """Runs of Lightning: ``lightning_logs/version_0/checkpoints/epoch=0-step=4.ckpt``, keys below ``net.``"""
    lightning = pytest.importorskip("lightning")

    class Training(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net, self.lr = Net(), lr

        def training_step(self, batch: list[Tensor]) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), self.lr)

    rows = []
    for run in range(RUNS):
        torch.manual_seed(run)
        training = Training(10 ** (-3 + run / 4))
        keep = lightning.pytorch.callbacks.ModelCheckpoint(save_top_k=-1, every_n_epochs=1)
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, default_root_dir=folder, callbacks=[keep], enable_progress_bar=False,
            enable_model_summary=False, logger=lightning.pytorch.loggers.CSVLogger(folder),
        )  # fmt: skip
        trainer.fit(training, loader(run))
        for path in Path(trainer.log_dir).rglob("*.ckpt"):
            net, saved = Net(), torch.load(path, weights_only=True)["state_dict"]
            net.load_state_dict({key.removeprefix("net."): t for key, t in saved.items()})
            rows.append({"run": run, "file": path.relative_to(folder), "loss": loss_of(net)})
    return rows


def by_trainer(folder: Path) -> list[dict[str, Any]]:
    """Runs of Hugging Face's Trainer: ``run-0/checkpoint-4/model.safetensors``, with config, optimiser and others."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    rows = []
    for run in range(RUNS):
        torch.manual_seed(run)
        config = transformers.BertConfig(
            vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
            max_position_embeddings=8, num_labels=3, pad_token_id=0,
        )  # fmt: skip
        net = transformers.BertForSequenceClassification(config)
        words = torch.randint(1, 12, (40, 6), generator=torch.Generator().manual_seed(0))
        texts = [{"input_ids": text, "labels": text[0] % 3} for text in words]
        told = transformers.TrainingArguments(
            output_dir=str(folder / f"run-{run}"), num_train_epochs=EPOCHS, save_strategy="epoch", report_to=[],
            per_device_train_batch_size=10, learning_rate=10 ** (-4 + run / 4), use_cpu=True, disable_tqdm=True,
            logging_strategy="no", seed=run,
        )  # fmt: skip
        transformers.Trainer(net, told, train_dataset=texts).train()
        for place in sorted((folder / f"run-{run}").iterdir()):
            saved = transformers.BertForSequenceClassification.from_pretrained(place).eval()
            with torch.no_grad():
                loss = nn.functional.cross_entropy(saved(words).logits, words[:, 0] % 3)
            rows.append({"run": run, "file": place.relative_to(folder), "loss": float(loss)})
    return rows


def by_loop(folder: Path) -> list[dict[str, Any]]:
    """What scripts write: ``run3.pth.tar``, a dict of DataParallel's state dict, the optimiser's, and arguments."""
    folder.mkdir()
    rows = []
    for run in range(2 * RUNS):
        torch.manual_seed(run)
        net = nn.DataParallel(Net())
        optimizer = torch.optim.SGD(net.parameters(), 10 ** (-3 + run / 8), momentum=0.9)
        for x, y in loader(run):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        kept = {"epoch": 1, "args": Namespace(lr=0.1), "optimizer": optimizer.state_dict()}
        torch.save({**kept, "state_dict": net.state_dict()}, folder / f"run{run}.pth.tar")
        rows.append({"run": run, "file": f"run{run}", "loss": loss_of(net.module)})
    return rows


@pytest.mark.parametrize("make", [by_lightning, by_trainer, by_loop])
def test_runs_become_a_predictor_a_tree_and_a_merged_network(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = make(tmp_path / "runs")
    assert len(rows) == 2 * RUNS
    with Path("results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    files = [Path("runs", str(row["file"])) for row in rows]
    if make is by_loop:
        files = [path.with_name(f"{path.name}.pth.tar") for path in files]
    net = f"hf:{files[0]}" if make is by_trainer else f"{normed_net.__file__}:Net"

    call = ["--net", net, "--targets", "results.csv", "--column", "loss", "--group", "run", "--models", "stats"]
    assert f"{2 * RUNS} networks" in said("train", "runs", *call, "--epochs", "2")
    answers = json.loads(
        invoke("predict", *files[:2], "--predictor", "results/train/predictor.safetensors", "--json").stdout
    )
    assert len(answers["networks"]) == 2

    few = Path("few")
    few.mkdir()
    for path in (*files[:3], files[-1]):
        few.joinpath("-".join(path.parts[1:])).symlink_to(path.absolute(), target_is_directory=path.is_dir())
    family = json.loads(invoke("compare", "few", "--net", net, "--json").stdout)
    assert len(family["members"]) == 4
    kin = {frozenset((pair["a"], pair["b"])) for pair in family["kinship"]["pairs"]}
    assert len(kin) == (make is not by_loop), "two checkpoints of one run, and no others"

    merged = said("align", files[0], files[-1], "--net", net, "--merge", "0.5", "--out", "merged")
    assert "Merged at 0.5" in merged
    assert [path.name for path in Path("merged").iterdir() if path.name.startswith("merged")]
    if make is by_trainer:
        transformers = pytest.importorskip("transformers")
        transformers.BertForSequenceClassification.from_pretrained("merged/merged")
