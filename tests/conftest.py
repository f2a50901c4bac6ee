import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=60)
settings.load_profile("default")
torch.set_num_threads(1)  # tests run in parallel processes
