"""``python -m fastops.bench``: fastops beside PyTorch eager, torch.compile and zentorch, in turns in one process.

Every result is compared with a float64 reference before it is timed. ``--help`` has the options.
"""
