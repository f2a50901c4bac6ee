"""What every test relies on: random numbers that no other test and no order changes, and a budget of examples.

``HYPOTHESIS_PROFILE=thorough`` asks for thirty times the examples, ``SHUFFLE=1`` (any seed) for another order of tests,
``ROUNDING=1`` (any seed) for matrix products that round as on another processor: see ``other_rounding``.
"""

import gc
import os
import random
import sys

import numpy as np
import other_rounding
import pytest
import torch
from hypothesis import HealthCheck, register_random, settings

# No time limits: a loaded machine is slow.
settings.register_profile("default", deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
# The same examples every time where a failure could not be looked into.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, database=None)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler writes two lines at every start
if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(1)  # tensors are small, and tests run in parallel processes


if seed := os.environ.get("ROUNDING"):
    PRODUCTS = other_rounding.install(seed)


# Without a GPU, torch.manual_seed would note its stack of calls for one that may come, which takes 500 times as long.
SEED = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


class TorchRandom:
    """Hypothesis seeds it for every example, so that one that failed fails again."""

    seed = staticmethod(SEED)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


register_random(TorchRandom)


# A million objects of modules and tests stay until the end. To look through them for cycles took a seventh of the time;
# cycles that imports have left stay as well.
gc.disable()

MODULES: set[str] = set()


@pytest.fixture
def modules_of_collection() -> set[str]:
    """Names of the modules that were imported when all tests were collected."""
    return MODULES


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    MODULES.update(sys.modules)
    if seed := os.environ.get("SHUFFLE"):
        random.Random(seed).shuffle(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    SEED(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # graphs of other tests count towards the limit of recompilations
