import os

import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=100)
settings.load_profile("default")
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler writes two lines at every start
torch.set_num_threads(1)  # tests run in parallel processes
