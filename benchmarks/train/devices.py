"""Training in several processes: on CPU cores, GPUs or nodes, by the same command.

    torchrun --nproc-per-node 2 -m nfn_monomial.benchmarks predict-generalization zoos/digits
    nfn-monomial predict-generalization zoos/digits --devices 2

Every process runs the whole command and holds the same model. A batch's examples are shared out (`share`), each process
computes the outputs of its own, and the outputs of all are put together again (`gathered`), so that every process has
the loss of the whole batch, whatever the loss is. Then the gradient is that of one process, by this: let ``o_r(w)`` be
the outputs of process ``r`` of ``P`` and ``L(o_1, ..., o_P)`` the loss. In process ``r`` the others' outputs are
constants, so backward of ``P L`` gives ``P (do_r/dw)^T dL/do_r``, and the mean over processes, which DDP takes, is
``sum_r (do_r/dw)^T dL/do_r = dL/dw``. No communication but this mean is in backward. Examples that only pad a share are
not in ``L`` and have no gradient.

This asks of a model that its output for one example does not depend on the others in the batch. Random layers
(dropout, augmentation) draw in every process for its own share, so with them results are equal in distribution only.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.utilities import rank_zero_only
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nfn_monomial.benchmarks.settings.training import TrainConfig
from nfn_monomial.errors import InvalidValueError

__all__ = [
    "compiled",
    "compiling",
    "gathered",
    "is_main_process",
    "make_fabric",
    "require_device",
    "share",
    "threads",
]

SHOWN = 300  # characters of a compiler's message


def is_main_process() -> bool:
    """Returns True if this process prints and writes: the only one, or the first of several."""
    lightning: Any = rank_zero_only  # which keeps the rank as an attribute
    return bool(lightning.rank == 0)


class _Mixed(MixedPrecision):
    """Mixed precision in which autocast rounds operation by operation; Fabric would also round the data."""

    def convert_input(self, data: Any) -> Any:
        return data


def require_device(name: str | torch.device, count: int = 1) -> torch.device:
    """The device of this name, for ``count`` processes here.

    Raises:
        ValueError: if there is no such device, or not one for each process.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InvalidValueError(f"device {str(name)!r} is unknown; use cpu, cuda or cuda:N")
    if device.type == "cuda":
        if device.index is not None and count > 1:
            raise InvalidValueError(f"device {str(name)!r} is one GPU, but there are {count} processes: use cuda")
        if (device.index or 0) + count > torch.cuda.device_count():
            raise InvalidValueError(
                f"device {str(name)!r} is not there{f' {count} times' * (count > 1)}: torch {torch.__version__} "
                f"sees {torch.cuda.device_count()} CUDA devices; use cpu"
            )
    return device


def make_fabric(config: TrainConfig) -> Fabric:
    """Returns Fabric on the configured devices. Starts the other processes, unless ``torchrun`` or ``fabric run`` has.

    Raises:
        ValueError: if there is no such device, or the number of processes is another one already.
    """
    count, nodes = config.devices, 1
    if TorchElasticEnvironment.detect():
        count = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // count
    if config.devices not in (1, count):
        raise InvalidValueError(f"devices is {config.devices}, but {count} processes a node were started: leave it out")
    if torch.distributed.is_initialized() and (started := torch.distributed.get_world_size()) != count * nodes:
        raise InvalidValueError(f"devices is {config.devices}, but {started} processes are running: it cannot change")
    device = require_device(config.device, count)
    devices: Any = count
    if device.type == "cuda":
        devices = count if device.index is None else [device.index]
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or its results vary; read when it starts
    strategy: Any = "auto"
    if count * nodes > 1:
        # Others wait while one makes data, for hours maybe. A process that dies ends the waiting, whatever the timeout.
        strategy = DDPStrategy(find_unused_parameters=True, broadcast_buffers=False, timeout=timedelta(days=7))
    mixed = config.precision == "bf16-mixed"
    precision: Any = {"plugins": _Mixed("bf16-mixed", device.type)} if mixed else {"precision": config.precision}
    fabric = Fabric(accelerator=device.type, devices=devices, num_nodes=nodes, strategy=strategy, **precision)
    if "LT_CLI_USED" not in os.environ:  # `fabric run` has launched it
        fabric.launch()  # makes a GPU the current one
    atexit.unregister(_end_processes)
    atexit.register(_end_processes)
    return fabric


def _end_processes() -> None:
    """Lets go of the other processes while Python still runs.

    A thread of the gloo backend lets go of the last tensor that was sent some time after the sender goes on. If Python
    has begun to end by then, the thread ends the process with SIGABRT, all of its work done. Destroying the group
    waits for the thread. With NCCL Fabric does the same.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """A block in which an operation on the CPU has so many threads; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compiled(model: nn.Module, device: torch.device) -> Callable[[Any], Any]:
    """The model's call under ``torch.compile``: compiled when it is first called; the model stays as it is.

    On cuda it runs as CUDA graphs, whose outputs are overwritten by the next call. Operations that
    cannot be part of a graph (those that look at values, as in torch_geometric) run as they are, between graphs.

    Raises:
        ValueError: by the first call, if the machine or this version of torch cannot compile the model.
    """
    graphs = device.type == "cuda"
    call = torch.compile(lambda inputs: model(inputs), mode="reduce-overhead" if graphs else None)

    def run(inputs: Any) -> Any:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with compiling(model, device):
            return call(inputs)

    return run


@contextmanager
def compiling(model: nn.Module, device: torch.device) -> Iterator[None]:
    """A block in which a model may be compiled: a first call, or the backward after it, which may come later.

    Raises:
        ValueError: if the compiler fails, with its message and the way out.
    """
    try:
        yield
    except torch._dynamo.exc.TorchDynamoException as error:
        said = " ".join(str(error).split())[:SHOWN]
        raise InvalidValueError(
            f"{type(model).__name__} could not be compiled on {device.type} by torch {torch.__version__} "
            f"({type(error).__name__}: {said}): leave out training.compiled; on a CPU it needs a C++ compiler"
        ) from error


def share(index: Tensor, fabric: Fabric) -> Tensor:
    """Returns this process's part ``(ceil(n / P),)`` of a batch ``(n,)``.

    Shares have one length; the last ones are padded by repetition.
    """
    if fabric.world_size == 1:
        return index
    size = -(-len(index) // fabric.world_size)
    places = torch.arange(size, device=index.device) + fabric.global_rank * size
    return index[places % len(index)]


def gathered(outputs: Any, count: int, fabric: Fabric) -> Any:
    """Outputs of the whole batch of ``count`` from those of every share; those of other processes are constants.

    Args:
        outputs: a pytree of tensors ``(ceil(count / P), ...)``.
        count: of examples in the batch; the padding of shares is dropped.
        fabric: as for `share`.
    """
    if fabric.world_size == 1:
        return outputs

    def whole(outputs_here: Tensor) -> Tensor:
        parts = [
            torch.empty_like(outputs_here, memory_format=torch.contiguous_format) for _ in range(fabric.world_size)
        ]
        torch.distributed.all_gather(parts, outputs_here.detach().contiguous())
        parts[fabric.global_rank] = outputs_here
        return torch.cat(parts)[:count]

    return pytree.tree_map(whole, outputs)
