"""Zoos larger than memory: the same runs as in memory, never more than a batch at once, known by their checksums."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from on_disk import OnDisk
from runs_alike import assert_same_results
from small_zoo import small_zoo
from streamed_zoos import both, config, written

from nfn_monomial.benchmarks.data import batches
from nfn_monomial.benchmarks.data import networks as predict_data
from nfn_monomial.benchmarks.data.networks import Corpus, Networks, groups_of
from nfn_monomial.benchmarks.experiments.predict import PredictConfig
from nfn_monomial.benchmarks.studies import predict
from nfn_monomial.benchmarks.train.sweep import Finished, run_job
from nfn_monomial.tools.predictors.models import EVALUATION_BATCH


def runs(corpus: Corpus, config: PredictConfig) -> list[Finished]:
    return [run_job(job) for job in predict.plan(config, {corpus.activation: corpus})]


def test_a_zoo_left_in_its_file_trains_and_tests_alike(tmp_path: Path) -> None:
    """On the original, augmented and moved train sets, and on all test sets."""
    held, streamed = both(written(tmp_path / "zoo"))
    plan = config("statnn", "monomial", train_sets=("original", "augmented", "moved"), augment_scale=None)
    for memory, disk in zip(runs(held, plan), runs(streamed, plan), strict=True):
        assert memory.run.settings == disk.run.settings, "and so the same fingerprint"
        assert [t.name for t in disk.run.tests][-1] == "widened"
        assert_same_results(disk.run.tests, memory.run.tests)
        assert memory.state.keys() == disk.state.keys()
        for name, t in memory.state.items():
            assert torch.allclose(disk.state[name], t, rtol=1e-3, atol=1e-5), name


def spied() -> tuple[Corpus, list[OnDisk]]:
    """40 networks to train on, 320 to validate and to test on, and spies on their rows."""
    corpus = small_zoo(networks=320)
    (part,) = corpus.train
    parts, spies = {}, []
    for name, count in {"train": 40, "val": 320, "test": 320}.items():
        some = part.networks.subset(slice(count))
        spies.append(OnDisk(some.rows))
        parts[name] = (replace(part, networks=Networks(spies[-1], some.accuracy)),)
    return replace(corpus, **parts), spies


def test_memory_holds_a_batch_and_not_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to the networks, what is read of them at once, and so all made of it, is a batch at most."""
    corpus, (train, val, test) = spied()
    monkeypatch.setattr(batches, "BUFFER_BYTES", 0)
    monkeypatch.setattr(predict_data, "LOOKED_AT", 8)
    monkeypatch.setattr(predict_data, "BLOCK_BYTES", 16 * train.nbytes // len(train))
    plan = config("np", train_sets=("augmented",))
    jobs = predict.plan(plan, {"relu": corpus})
    assert (train.most, val.most, test.most) == (16, 16, 16), "for the fingerprint"
    train.most = val.most = test.most = 0
    run_job(jobs[0])
    assert train.most <= plan.training.batch_size
    assert 0 < val.most <= EVALUATION_BATCH < len(val)
    assert test.most == EVALUATION_BATCH < len(test)
    # The negative twin: what reads all of it is seen.
    groups_of(corpus.test)
    assert test.most == len(test)
