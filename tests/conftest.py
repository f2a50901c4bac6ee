import os

import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=100)
# The same examples every time where a failure could not be looked into.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler writes two lines at every start
torch.set_num_threads(1)  # tests run in parallel processes
