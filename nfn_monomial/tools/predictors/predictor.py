"""Trained models that can be applied to networks: loaded from a file that an experiment has written."""

from __future__ import annotations

import copy
import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.tools.definitions.define import Definition, read_definition
from nfn_monomial.tools.definitions.imports import arguments_of
from nfn_monomial.tools.files.atomic import write_atomically
from nfn_monomial.tools.files.checkpoints import (
    TORCH,
    Checkpoint,
    checkpoints_in,
    read_checkpoint,
    real_files,
    skipping,
)
from nfn_monomial.tools.files.sealed import read_sealed, seal
from nfn_monomial.tools.files.untrusted import damaged
from nfn_monomial.tools.results import Progress, silent
from nfn_monomial.tools.store import Store

from .budget import Budget
from .matching import Candidate, Match, Network, candidates, in_words, match, numbers_of
from .models import NORMAL, at_once
from .tasks import Prediction, Task, read_task, runs_networks

__all__ = ["SHIPPED", "Predictor"]

SHIPPED = Path(__file__).with_name("digits-relu.safetensors")
"""A predictor of the accuracy of the demo's ReLU networks, which is part of the package."""

KEPT = "answers-1"
"""Name of the pieces in a store; the number is raised when answers are computed in another way."""

MOST_WORK = 2**30
"""Operations of one run of a network; its normal form takes hundreds of runs."""

Answer = Any
"""For one network: a tensor, or the state dict of the edited network."""


@dataclass(frozen=True)
class Predictor:
    """A trained model and all that it takes to apply it.

    Call it with networks: a module, a state dict, any number of these, or tensors ``(N, 1, *shape)`` by the names of
    the weight space. It returns

    - accuracies in [0, 1], ``(N,)``, if it predicts the accuracy of classifiers;
    - the probability of each class, ``(N, classes)``, if it classifies INRs of digits;
    - the edited networks, a list of N state dicts with the keys and dtypes of the arguments, if it is an editor.

    Networks may be wider than those it was trained on, if its model reads any width; networks of another architecture
    are refused with a reason. Weights do not show activations: those that it was trained for are assumed. The
    activations of modules are checked.

    Attributes:
        task: the question, and the networks that it is about.
        model: in evaluation mode; may be moved to another device, or made double.
        record: of its training, as JSON has it: settings, seed, metrics on validation and test networks.

    >>> from nfn_monomial.tools import Predictor
    >>> predictor = Predictor.load()
    >>> predictor.reads
    '4 layers 1-16-16-16-10, kernels 3x3, 3x3, 3x3, relu, on inputs 1x8x8, of any width'
    """

    task: Task
    model: nn.Module
    record: Mapping[str, Any]

    @classmethod
    def load(
        cls,
        path: str | Path = SHIPPED,
        net: str | Definition | None = None,
        net_args: str | Mapping[str, Any] | None = None,
    ) -> Predictor:
        """Loads the predictor in a file; by default the one that ships with this package.

        Nothing is unpickled, a checksum detects damage, and no model is built that is larger than the file.

        Args:
            path: of the file.
            net: the networks' architecture, for a model that runs them if the file does not name it: its name
                (``module.py:Class``, see `read_definition`), whose **code runs**, or what `define` makes of a module.
            net_args: arguments of a class or function that ``net`` names: by name, or as text, ``width=64,depth=3``.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: naming the file, if it is damaged, no predictor, of another version, or of a model that is not
                known here.
        """
        with damaged(path, "copy it again, or train the model again"):
            tensors, record = read_sealed(path)
            if not isinstance(record, dict):
                raise InvalidValueError("it does not state what its weights are")
        try:
            task, settings = read_task(record.get("predictor")), record.get("settings")
            if not isinstance(settings, dict) or not isinstance(settings.get("model"), str):
                raise InvalidValueError("its settings name no model")
            if net is not None:
                task = _with_code(task, net, net_args)
            elif runs_networks(settings["model"]) and task.infos[0].template is None:
                raise InvalidValueError(
                    f"its model {settings['model']} needs the networks' code, which no file has: say what they are by "
                    f"--net, as --net module.py:{task.infos[0].activation} (in Python load(path, net=...)); that code "
                    "runs"
                )
            model = _built(task, tensors, settings)
        except MonomialError as error:
            raise InvalidValueError(f"{path} cannot be used as a predictor: {error}") from error
        return cls(task, model.eval(), record)

    def save(self, path: str | Path) -> None:
        """Writes it to a file, which appears whole or not at all; `load` is the exact inverse."""
        record = {**self.record, "predictor": self.task.written()}
        write_atomically(Path(path), seal(self.model.state_dict(), record))

    @property
    def reads(self) -> str:
        """The networks that it reads, in words."""
        return self.task.reads(self._any_width)

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics on test networks, as they are, when it was trained."""
        match self.record:
            case {"tests": [{"metrics": dict(metrics)}, *_]}:
                return {str(name): value for name, value in metrics.items() if isinstance(value, float)}
        return {}

    @property
    def tested(self) -> int | None:
        """The number of these networks; None if the file does not say it."""
        match self.record:
            case {"networks": {"test": int(count)}}:
                return count
        return None

    def _match(self, candidate: Candidate) -> Match:
        return match(candidate, self.task.infos, self._any_width, self.reads)

    @property
    def _any_width(self) -> bool:
        return bool(self.model.any_width)

    def __call__(self, networks: Network | Iterable[Network]) -> Any:
        """Answers for N networks, see the class.

        Raises:
            ValueError: naming the network, if the predictor was trained for others, or it holds NaN; if there are none.
            TypeError: for arguments that are no networks.
        """
        batch = self._unstacked(networks)
        asked = candidates(networks) if batch is None else batch
        if not asked:
            raise InvalidValueError("no networks given; at least one is needed")
        answers = [answer for answer, _ in self._answers(asked)]
        return torch.stack(answers) if isinstance(answers[0], Tensor) else answers

    def predict(
        self,
        paths: Sequence[str | Path],
        *,
        key: str | None = None,
        order: Sequence[str] | None = None,
        skipped: dict[str, str] | None = None,
        store: Store | None = None,
        progress: Progress = silent,
    ) -> list[Prediction]:
        """Answers for checkpoints, of safetensors or ``torch.save``, and for all in folders, each once.

        Args:
            paths: files and folders.
            key: of the state dict in files of ``torch.save`` that hold several.
            order: names of the networks' layers in the order in which they run, if it is not that of the file.
            skipped: see `skipping`; files are left out if they cannot be read or matched.
            store: keeps the answers.
            progress: is told how many checkpoints were read.

        Raises:
            FileNotFoundError: if a file does not exist.
            ValueError: naming the file, if it is damaged or as when called; for a folder without checkpoints.
            TypeError: as when called.
        """
        files: dict[tuple[Path, ...], Path] = {}
        for path in map(Path, paths):
            for file in checkpoints_in(path) if path.is_dir() else [path]:
                files.setdefault(real_files(file), file)
        predictions: list[Prediction] = []

        def candidate(checkpoint: Checkpoint) -> Candidate:
            return Candidate(str(checkpoint.path), numbers_of(checkpoint, str(checkpoint.path)), order=order)

        def parts() -> Iterator[list[Checkpoint]]:
            """Reads the checkpoints, in parts that are answered at once."""
            part: list[Checkpoint] = []
            largest = 0
            for number, path in enumerate(files.values(), start=1):
                checkpoint = None
                with skipping(path, skipped, (MonomialError,)):
                    checkpoint = read_checkpoint(path, key if path.suffix in TORCH else None)
                    if skipped is not None:
                        self._match(candidate(checkpoint))
                if checkpoint is not None and str(path) not in (skipped or ()):
                    size = sum(file.stat().st_size for file in set(checkpoint.files))
                    if part and len(part) >= at_once(max(size, largest)):
                        yield part
                        part, largest = [], 0
                    largest = max(size, largest)
                    part.append(checkpoint)
                progress(number, len(files))
            if part:
                yield part

        try:
            for part in parts():
                make = functools.partial(self._piece, [candidate(checkpoint) for checkpoint in part])
                piece = None if store is None else store.piece(f"{KEPT}-{len(predictions)}", make)
                matches, tensors = piece or make()
                answers: list[Answer] = [{} for _ in part]
                for name, tensor in tensors.items():
                    number, _, entry = name.partition(" ")
                    if entry:
                        answers[int(number)][entry] = tensor
                    else:
                        answers[int(number)] = tensor
                for checkpoint, answer, (_, names, doubt) in zip(part, answers, matches, strict=True):
                    predictions.append(Prediction(checkpoint, names, answer, doubt))
        except MonomialError as error:
            if skipped is not None or len(files) == 1:
                raise
            raise type(error)(f"{error}; --skip-bad goes on without such files") from error
        if not predictions:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in (skipped or {}).items())
            raise InvalidValueError(f"none of these {len(files)} files can be used: {reasons}")
        return predictions

    def _piece(self, asked: Sequence[Candidate]) -> tuple[list[Match], dict[str, Tensor]]:
        """Answers for networks as a store keeps them: matches, and tensors by number and, for edited networks, key."""
        matches, tensors = list[Match](), dict[str, Tensor]()
        for i, (answer, matched) in enumerate(self._answers(asked)):
            edited = isinstance(answer, dict)
            tensors |= {f"{i} {key}": t for key, t in answer.items()} if edited else {f"{i}": answer}
            matches.append(matched)
        return matches, tensors

    @torch.no_grad()
    def _answers(self, asked: Sequence[Candidate]) -> list[tuple[Answer, Match]]:
        """Computes the answer for each network, those of one kind together; also returns what it was matched with."""
        alike: dict[Hashable, list[int]] = {}
        for i, candidate in enumerate(asked):
            alike.setdefault(candidate.kind, []).append(i)
        matches = [self._match(asked[rows[0]]) for rows in alike.values()]
        like = next(self.model.parameters())
        answers: dict[int, tuple[Answer, Match]] = {}
        for rows, matched in zip(alike.values(), matches, strict=True):
            number, names, _ = matched
            most = at_once(sum(asked[rows[0]].state[key].nbytes for key in names.values()))
            for part in (rows[start : start + most] for start in range(0, len(rows), most)):
                tensors = {
                    name: torch.stack([asked[i].state[key].to(like.device, like.dtype) for i in part])[:, None]
                    for name, key in names.items()
                }
                answer = self.task.answer(self.model, tensors, self.task.infos[number])
                for row, i in enumerate(part):
                    if isinstance(answer, Tensor):
                        answers[i] = answer[row], matched
                    else:
                        state = asked[i].state
                        edited = {key: answer[name][row, 0].to(state[key]) for name, key in names.items()}
                        answers[i] = edited, matched
        return [answers[i] for i in range(len(asked))]

    def _unstacked(self, networks: Any) -> list[Candidate] | None:
        """Splits a batch ``(N, 1, *shape)`` with the names of a space into networks; None if it is no such batch."""
        if not isinstance(networks, Mapping) or not all(isinstance(t, Tensor) for t in networks.values()):
            return None
        ranks = {name: t.ndim - 2 for name, t in networks.items()}
        spaces = [info.space for info in self.task.infos]
        if not any(ranks == {name: len(dims) for name, dims in space.parameters.items()} for space in spaces):
            return None
        one = {name: torch.zeros(t.shape[2:]) for name, t in networks.items()}
        spaces[self._match(Candidate("this batch", one))[0]].validate(networks)
        count, channels = next(iter(networks.values())).shape[:2]
        if channels != 1 or not count:
            raise InvalidValueError(
                f"this batch holds {count} networks of {channels} channels, expected (N, 1, *shape)"
            )
        return [Candidate(f"network {i}", {name: t[i, 0] for name, t in networks.items()}) for i in range(count)]


def _with_code(task: Task, net: str | Definition, net_args: str | Mapping[str, Any] | None) -> Task:
    """Adds the code of its networks to a task; raises a ValueError if it is that of others."""
    (info, *more) = task.infos
    arguments = arguments_of(net_args) if isinstance(net_args, str) else net_args
    definition = read_definition(net, info.input_shape, arguments=arguments) if isinstance(net, str) else net
    if more or definition.space != info.space:
        kinds = f"{len(more) + 1} architectures" if more else f"{info.activation}, {in_words(info.space.shapes())}"
        raise InvalidValueError(
            f"it was trained on networks of {kinds}, but --net is {definition.name}, "
            f"{in_words(definition.space.shapes())}: name the class of those networks"
        )
    module = definition.template()  # once, and not from the model's budget
    return task.about(replace(info, template=lambda: copy.deepcopy(module)))


def _built(task: Task, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> nn.Module:
    """Builds the model of a task, and loads its weights."""
    name = settings["model"]
    try:
        if name.startswith(NORMAL):  # normal forms are of the networks: no part of the model, nor of its budget
            for info in task.infos:
                if info.template is not None:
                    # one run on meta tensors counts the operations, and computes nothing
                    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
                        info.template().eval()(torch.zeros(2, *(info.input_shape or ())))
                    if (work := int(counter.get_total_flops())) > MOST_WORK:
                        raise InvalidValueError(
                            f"one run of its networks takes {work} operations; normal forms are computed for at most "
                            f"{MOST_WORK}"
                        )
            for info in task.infos:
                info.form  # noqa: B018  (which keeps it)
        with Budget(tensors), torch.random.fork_rng(devices=[]):
            model = task.build(name, settings.get("options") or {})
    except MonomialError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError, IndexError) as error:
        raise InvalidValueError(f"its model {name!r} cannot be built: {error!r}") from error
    expected = {key: (t.dtype, t.shape) for key, t in model.state_dict().items()}
    stored = {key: (t.dtype, t.shape) for key, t in tensors.items()}
    if expected != stored:
        wrong = next(key for key in (*expected, *stored) if expected.get(key) != stored.get(key))
        raise InvalidValueError(
            f"its weights are not those of the model {name!r} of this version: {wrong} is "
            f"{stored.get(wrong, 'missing')}, expected {expected.get(wrong, 'none')}"
        )
    model.load_state_dict(dict(tensors))
    return model
