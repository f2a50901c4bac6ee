"""Several processes: the results of one, whoever starts them; one writes; one that fails ends all."""

import json
import os
import subprocess
import sys
from typing import Any

import harness_worker
import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file, save_file

from nfn_monomial.benchmarks.train.devices import share
from nfn_monomial.benchmarks.train.runs import Run, RunStore
from nfn_monomial.benchmarks.train.sweep import sweep

WORKER = harness_worker.__file__
EXACT = harness_worker.EXACT


def start(*command: object) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment = {**clean, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    arguments = [sys.executable, *map(str, command)]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two processes by torchrun, that shall finish; and two by ``devices``, of which one shall fail. At once."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("torchrun", "failing")}
    commands = {
        "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, WORKER, folders["torchrun"]),
        "failing": (WORKER, folders["failing"], json.dumps({"devices": 2, "fail": 1, "kinds": ["parts"]})),
    }
    running = {name: start(*command) for name, command in commands.items()}
    outputs = {name: process.communicate(timeout=600)[0] for name, process in running.items()}
    return {name: (folders[name], running[name].returncode, outputs[name]) for name in commands}


@pytest.fixture(scope="module")
def both(started: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, RunStore]:
    """Results of two processes and of one."""
    folder, code, output = started["torchrun"]
    assert code == 0, output
    alone = RunStore(tmp_path_factory.mktemp("alone"))
    sweep(harness_worker.jobs(), alone)
    save_file(harness_worker.gradients(alone.folder / "still"), alone.folder / "gradients.safetensors")
    return RunStore(folder), alone


def distance(first: Run, second: Run) -> float:
    """Largest relative difference of any number that training, validation and tests gave."""
    numbers = []
    for run in (first, second):
        losses = [x for epoch in run.history for x in (epoch["train_loss"], epoch["metrics"]["score"])]
        numbers.append(torch.tensor([*losses, run.val["score"], run.tests[0].metrics["score"]], dtype=torch.float64))
    return float((numbers[0] / numbers[1] - 1).abs().max())


@pytest.mark.parametrize("kind", EXACT)
def test_two_processes_have_the_gradients_of_one(kind: str, both: tuple[RunStore, RunStore]) -> None:
    """For a loss of all pairs, 13 networks in batches of 4, of which the last is of one, and unused parameters."""
    first, second = (load_file(both[0].folder / f"gradients{rank}.safetensors")[kind] for rank in (0, 1))
    alone = load_file(both[1].folder / "gradients.safetensors")[kind]
    assert torch.equal(first, second), "both have the same"
    assert len(alone) == 5, "four steps, and one to measure memory"
    assert float(alone.norm(dim=1).min()) > 1e-3
    difference = (first - alone).norm(dim=1) / alone.norm(dim=1)
    assert float(difference.max()) < 1e-10


@pytest.mark.parametrize("kind", EXACT)
def test_two_processes_give_the_results_of_one(kind: str, both: tuple[RunStore, RunStore]) -> None:
    """With clipping, warm-up, decay and averages. Where a gradient is nothing but rounding, Adam follows that."""
    (job,) = harness_worker.jobs([kind])
    two, one = (store.load(job.settings) for store in both)
    assert two is not None
    assert one is not None
    assert two.environment["processes"] == 2
    assert two.best_epoch == one.best_epoch
    assert distance(two, one) < 1e-8
    states = [load_file(store.predictor_file(job.settings)) for store in both]
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-5, atol=1e-6)


def test_all_return_the_same_runs_and_one_reports(both: tuple[RunStore, RunStore]) -> None:
    records = [json.loads((both[0].folder / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert records[0]["runs"] == records[1]["runs"]
    kept = [both[0].load(job.settings) for job in harness_worker.jobs()]
    assert records[0]["runs"] == [json.loads(json.dumps(run.to_json())) for run in kept if run is not None]
    epochs = harness_worker.TRAINING.epochs
    assert [r["told"] for r in records] == [len(harness_worker.JOBS) * (1 + epochs + 1), 0]
    assert not any((both[0].folder / "partial").iterdir()), "nothing of unfinished runs is left"


def test_a_process_that_fails_ends_all(started: dict[str, Any]) -> None:
    folder, code, output = started["failing"]
    assert code != 0
    assert "broken on purpose" in output
    assert not (folder / "rank0.json").exists()
    assert not (folder / "runs").exists()


class _Alike(Fabric):
    """Several processes, as `share` sees them."""

    world_size = 3  # type: ignore[assignment]
    global_rank = 0  # type: ignore[assignment]


@pytest.mark.parametrize("count", range(1, 9))
def test_shares_are_of_one_length_and_hold_all_in_order(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    index = torch.arange(count) + 10
    fabric = _Alike(accelerator="cpu", devices=1)
    shares = []
    for rank in range(3):
        monkeypatch.setattr(_Alike, "global_rank", rank)
        shares.append(share(index, fabric))
    assert len({len(part) for part in shares}) == 1
    assert torch.equal(torch.cat(shares)[:count], index)
    assert len(torch.cat(shares)) < count + 3
