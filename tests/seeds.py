"""Seed torch's random numbers."""

import torch

# torch.manual_seed notes a stack trace for each kind of device that may still be initialised, which takes longer than
# many a test. Where there is no GPU, the generator of the CPU is the only one.
seed_torch = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
