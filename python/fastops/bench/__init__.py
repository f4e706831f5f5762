"""``python -m fastops.bench``: fastops beside PyTorch eager, torch.compile and zentorch, in one process and in turns.

Every result is compared with a float64 reference before it is timed. ``python -m fastops.bench --help`` has the options.
"""
