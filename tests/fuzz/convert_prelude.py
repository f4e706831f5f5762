"""What stands around the modules that the fuzzing of fastops.nn.convert makes up."""

# `note` is what the hooks, classes and functions below call, `adapted` a function of convert_changes.py.
PRELUDE = '''
import abc, functools
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

class Noisy(nn.Module):
    """A parametrization that draws random numbers."""
    def forward(self, weight):
        note("parametrization")
        return weight + 0.1 * torch.rand_like(weight)

class OwnLinear(nn.Linear):
    def forward(self, x):
        note("own linear")
        return super().forward(x) * 0.5

class PlainLinear(nn.Linear):
    pass

class CallLinear(nn.Linear):
    def __call__(self, x):
        note("call")
        return super().__call__(x) + 1

class PropertyLinear(nn.Linear):
    @property
    def weight(self):
        note("weight")
        return 2 * self._parameters["weight"]

def property_linear(*sizes):
    layer = nn.Linear(*sizes)
    layer.__class__ = PropertyLinear
    return layer

class OwnActivation(nn.Module):
    def forward(self, x):
        note("own activation")
        return torch.sin(x) * torch.rand(())

class OwnReLU(nn.ReLU):
    def forward(self, x):
        return -super().forward(x)

class Counted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        note(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})

class Equal:
    """A function without a hash."""
    def __eq__(self, other):
        return isinstance(other, Equal)
    def __call__(self, x):
        return 0.5 * x

halved = Equal()

class Loud(type):
    def __init__(cls, *arguments):
        note("metaclass")
        super().__init__(*arguments)

class Registering(nn.Module):
    def __init_subclass__(cls, *, label, **arguments):
        note("subclass")
        super().__init_subclass__(**arguments)

def scaled(x, factor=2.0, axes=()):
    note("scaled")
    return x * factor

def hooked(module, name):
    module.register_forward_hook(lambda *_: note(name))
    return module

def act(x):
    note("the global act")
    return 3 * x

alias = F.silu
abs = torch.tanh
'''
