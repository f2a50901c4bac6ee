"""Trained models that can be applied: loaded from the file that an experiment has left, asked about networks."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nfn_monomial.errors import InvalidValueError, MonomialError
from nfn_monomial.fibre import NormalForm
from nfn_monomial.tools.definitions.define import Definition, read_definition
from nfn_monomial.tools.definitions.imports import arguments_of
from nfn_monomial.tools.files.atomic import write_atomically
from nfn_monomial.tools.files.checkpoints import TORCH, Checkpoint, checkpoints_in, read_checkpoint, real_files
from nfn_monomial.tools.files.sealed import read_sealed, seal
from nfn_monomial.tools.files.untrusted import damaged
from nfn_monomial.tools.results import Progress, silent
from nfn_monomial.tools.store import Store

from .budget import Budget
from .matching import Given, Match, Network, given_networks, in_words, match, numbers_of
from .models import NORMAL, at_once
from .tasks import Prediction, Task, read_task, runs_networks

__all__ = ["SHIPPED", "Predictor"]

SHIPPED = Path(__file__).with_name("digits-relu.safetensors")
"""A predictor of the accuracy of the demo's ReLU networks, which is part of the package."""

KEPT = "answers-1"
"""Pieces of a store; the number is raised when answers are computed in another way."""

MOST_WORK = 2**30
"""Operations of one run of a network, which its normal form takes hundreds of."""

Answer = Any
"""Of one network: a tensor, or the state dict of the edited network."""


@dataclass(frozen=True)
class Predictor:
    """A trained model and all that it takes to apply it.

    Call it with networks: a module, a state dict, any number of these, or tensors ``(N, 1, *shape)`` by the names of
    the weight space. It answers

    - what an accuracy predictor was trained for: accuracies in [0, 1], ``(N,)``;
    - of INRs that show digits: the probability of each class, ``(N, classes)``;
    - as an editor: the edited networks, a list of N state dicts with the keys and dtypes of those given.

    Networks may be wider than those it was trained on, where its model reads any width, and of other architecture they
    may not: this is refused in words. Of weights alone nobody knows the activations: those it was trained for are
    taken; of modules they are looked at.

    Attributes:
        task: what is asked, about which networks.
        model: in evaluation mode; may be moved to another device, or made double.
        record: what is known of its training, as JSON has it: settings, seed, metrics on validation and test networks.

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
        """The predictor in a file; by default the one that ships with this package.

        Nothing is unpickled, a checksum finds damage, and no model is built that is larger than the file.

        Args:
            path: of the file.
            net: the networks' architecture, for a model that runs them where no file has their code: its name
                (``module.py:Class``, as of `read_definition`), whose **code runs**, or what `define` makes of a module.
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
            task = _running(read_task(record.get("predictor")), _model_of(record), net, net_args)
            model = _built(task, tensors, record)
        except MonomialError as error:
            raise InvalidValueError(f"{path} cannot be used as a predictor: {error}") from error
        return cls(task, model.eval(), record)

    def save(self, path: str | Path) -> None:
        """Write it to a file, which appears whole or not at all; `load` is the exact inverse."""
        record = {**self.record, "predictor": self.task.written()}
        write_atomically(Path(path), seal(self.model.state_dict(), record))

    @property
    def reads(self) -> str:
        """Which networks it reads, in words."""
        return self.task.reads(self._any_width)

    @property
    def metrics(self) -> dict[str, float]:
        """How well it did on test networks, as they are, when it was trained."""
        match self.record:
            case {"tests": [{"metrics": dict(metrics)}, *_]}:
                return {str(name): value for name, value in metrics.items() if isinstance(value, float)}
        return {}

    @property
    def _any_width(self) -> bool:
        return bool(self.model.any_width)

    def __call__(self, networks: Network | Iterable[Network]) -> Any:
        """Answers for N networks, see the class.

        Raises:
            ValueError: naming the network, if it is none that the predictor was trained for, or holds NaN; if there
                are none.
            TypeError: for what is no network.
        """
        given = given_networks(networks) if (batch := self._unstacked(networks)) is None else batch
        if not given:
            raise InvalidValueError("no networks given; at least one is needed")
        answers = [answer for answer, _ in self._asked(given)]
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
        """Answers for checkpoints, of safetensors or ``torch.save``, and for all that lie in folders, each once.

        Args:
            paths: files and folders.
            key: of the state dict in files of ``torch.save`` that hold several.
            order: names of the networks' layers in the order in which they run, where that is not
                the order of the file.
            skipped: where it is told, path -> reason, which files are left out as they cannot be used; without it the
                first of them is an error.
            store: which keeps the answers.
            progress: told how many checkpoints were read.

        Raises:
            FileNotFoundError: if a file is not there.
            ValueError: naming the file, if it is damaged or as when called; for a folder without checkpoints.
            TypeError: as when called.
        """
        named = [file for path in map(Path, paths) for file in (checkpoints_in(path) if path.is_dir() else [path])]
        files: dict[tuple[Path, ...], Path] = {}
        for file in named:
            files.setdefault(real_files(file), file)
        found: list[Prediction] = []

        def given(checkpoint: Checkpoint) -> Given:
            return Given(str(checkpoint.path), numbers_of(checkpoint, str(checkpoint.path)), order=order)

        def usable(path: Path) -> Checkpoint | None:
            try:
                checkpoint = read_checkpoint(path, key if path.suffix in TORCH else None)
                if skipped is not None:
                    match(given(checkpoint), self.task.infos, self._any_width, self.reads)
            except MonomialError as error:
                if skipped is None:
                    raise
                skipped[str(path)] = str(error).removeprefix(str(path)).lstrip(": ")
                return None
            return checkpoint

        try:
            for read in _read(list(files.values()), usable, progress):
                of_these = functools.partial(self._of_checkpoints, [given(checkpoint) for checkpoint in read])
                piece = None if store is None else store.piece(f"{KEPT}-{len(found)}", of_these)
                matched, tensors = piece or of_these()
                answers: list[Answer] = [{} for _ in read]
                for name, tensor in tensors.items():
                    number, _, entry = name.partition(" ")
                    if entry:
                        answers[int(number)][entry] = tensor
                    else:
                        answers[int(number)] = tensor
                for checkpoint, answer, (_, names, doubt) in zip(read, answers, matched, strict=True):
                    found.append(Prediction(checkpoint, names, answer, doubt))
        except MonomialError as error:
            if skipped is not None or len(files) == 1:
                raise
            raise type(error)(f"{error}; --skip-bad goes on without such files") from error
        if not found:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in (skipped or {}).items())
            raise InvalidValueError(f"none of these {len(files)} files can be used: {reasons}")
        return found

    def _of_checkpoints(self, given: Sequence[Given]) -> tuple[list[Match], dict[str, Tensor]]:
        """Of each its keys, and answers by its number and, of an edited network, key."""
        asked = self._asked(given)
        tensors: dict[str, Tensor] = {}
        for i, (answer, _) in enumerate(asked):
            edited = isinstance(answer, dict)
            tensors |= {f"{i} {key}": t for key, t in answer.items()} if edited else {f"{i}": answer}
        return [matched for _, matched in asked], tensors

    @torch.no_grad()
    def _asked(self, given: Sequence[Given]) -> list[tuple[Answer, Match]]:
        """The answer for each network, those of one kind computed together, and what it was matched to."""
        alike: dict[Hashable, list[int]] = {}
        for i, network in enumerate(given):
            alike.setdefault(network.kind, []).append(i)
        infos = self.task.infos
        matched = [match(given[rows[0]], infos, self._any_width, self.reads) for rows in alike.values()]
        like = next(self.model.parameters())
        found: dict[int, tuple[Answer, Match]] = {}
        for rows, one in zip(alike.values(), matched, strict=True):
            number, names, _ = one
            most = at_once(sum(given[rows[0]].state[key].nbytes for key in names.values()))
            for part in (rows[start : start + most] for start in range(0, len(rows), most)):
                tensors = {
                    name: torch.stack([given[i].state[key].to(like.device, like.dtype) for i in part])[:, None]
                    for name, key in names.items()
                }
                answer = self.task.answer(self.model, tensors, infos[number])
                for row, i in enumerate(part):
                    if isinstance(answer, Tensor):
                        found[i] = answer[row], one
                    else:
                        state = given[i].state
                        found[i] = {key: answer[name][row, 0].to(state[key]) for name, key in names.items()}, one
        return [found[i] for i in range(len(given))]

    def _unstacked(self, networks: Any) -> list[Given] | None:
        """The networks of a batch ``(N, 1, *shape)`` with the names of a space, if this is one."""
        if not isinstance(networks, Mapping) or not all(isinstance(t, Tensor) for t in networks.values()):
            return None
        ranks = {name: t.ndim - 2 for name, t in networks.items()}
        spaces = [info.space for info in self.task.infos]
        if not any(ranks == {name: len(dims) for name, dims in space.parameters.items()} for space in spaces):
            return None
        one = {name: torch.zeros(t.shape[2:]) for name, t in networks.items()}
        spaces[match(Given("this batch", one), self.task.infos, self._any_width, self.reads).number].validate(networks)
        count, channels = next(iter(networks.values())).shape[:2]
        if channels != 1 or not count:
            raise InvalidValueError(
                f"this batch holds {count} networks of {channels} channels, expected (N, 1, *shape)"
            )
        return [Given(f"network {i}", {name: t[i, 0] for name, t in networks.items()}) for i in range(count)]


def _read(
    files: Sequence[Path], usable: Callable[[Path], Checkpoint | None], progress: Progress
) -> Iterator[list[Checkpoint]]:
    """Checkpoints that are answered at once."""
    part: list[Checkpoint] = []
    largest = 0
    for number, path in enumerate(files, start=1):
        if (checkpoint := usable(path)) is not None:
            size = sum(file.stat().st_size for file in set(checkpoint.files))
            if part and len(part) >= at_once(max(size, largest)):
                yield part
                part, largest = [], 0
            largest = max(size, largest)
            part.append(checkpoint)
        progress(number, len(files))
    if part:
        yield part


def _model_of(record: Mapping[str, Any]) -> str:
    settings = record.get("settings")
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), str):
        raise InvalidValueError("its settings name no model")
    return str(settings["model"])


def _running(task: Task, model: str, net: str | Definition | None, net_args: str | Mapping[str, Any] | None) -> Task:
    """The task with the code of its networks, if that is given; raises a ValueError where it is needed and missing."""
    (info, *more) = task.infos
    if net is None:
        if runs_networks(model) and info.template is None:
            raise InvalidValueError(
                f"its model {model} needs the networks' code, which no file has: say what they are by --net, as "
                f"--net module.py:{info.activation} (in Python load(path, net=...)); that code runs"
            )
        return task
    given = arguments_of(net_args) if isinstance(net_args, str) else net_args
    definition = read_definition(net, info.input_shape, arguments=given) if isinstance(net, str) else net
    if more or definition.space != info.space:
        kinds = f"{len(more) + 1} architectures" if more else f"{info.activation}, {in_words(info.space.shapes())}"
        raise InvalidValueError(
            f"it was trained on networks of {kinds}, but --net is {definition.name}, "
            f"{in_words(definition.space.shapes())}: name the class of those networks"
        )
    module = definition.template()  # once, and not from the model's budget
    return task.about(replace(info, template=lambda: copy.deepcopy(module)))


def _built(task: Task, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> nn.Module:
    settings = record["settings"]
    try:
        _forms(task, settings["model"])
        with Budget(tensors), torch.random.fork_rng(devices=[]):
            model = task.build(settings["model"], settings.get("options") or {})
    except MonomialError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError, IndexError) as error:
        raise InvalidValueError(f"its model {settings['model']!r} cannot be built: {error!r}") from error
    own = {name: (t.dtype, t.shape) for name, t in model.state_dict().items()}
    found = {name: (t.dtype, t.shape) for name, t in tensors.items()}
    if own != found:
        wrong = next(name for name in (*own, *found) if own.get(name) != found.get(name))
        raise InvalidValueError(
            f"its weights are not those of the model {settings['model']!r} of this version: {wrong} is "
            f"{found.get(wrong, 'missing')}, expected {own.get(wrong, 'none')}"
        )
    model.load_state_dict(dict(tensors))
    return model


def _forms(task: Task, model: str) -> list[NormalForm]:
    """Normal forms that a model reads; found before it is built, as they are of the networks, and no part of it."""
    if not model.startswith(NORMAL):
        return []
    for info in task.infos:
        if info.template is not None and (work := _work(info.template, info.input_shape or ())) > MOST_WORK:
            raise InvalidValueError(
                f"one run of its networks takes {work} operations; of {MOST_WORK} at most, normal forms are found"
            )
    return [info.form for info in task.infos]


def _work(template: Callable[[], nn.Module], shape: Sequence[int]) -> int:
    """Operations of a run on two inputs of this shape; nothing is computed for it."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        template().eval()(torch.zeros(2, *shape))
    return int(counter.get_total_flops())
