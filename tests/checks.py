"""Comparisons that several tests make."""

import functools
import os

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

import fastops


def bits(tensor):
    """The bits of a tensor's elements as integers, the same for every NaN."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    tensor = tensor.detach().cpu()
    return torch.where(tensor.isnan(), torch.nan, tensor).contiguous().view(integer)


def assert_same_bits(actual, expected, what=""):
    """The tensors are equal bit by bit, any NaN being equal to any other."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, what
    wrong = (bits(actual) != bits(expected)).nonzero()
    if len(wrong):
        index = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{what}: {len(wrong)} elements differ; the first, at {index}, is {actual[index].item()!r}, "
            f"expected {expected[index].item()!r}"
        )


def assert_meta_agrees(results, op, *args, **kwargs):
    """The op's Meta kernel gives the shapes, dtypes and strides of these results.

    The strides of empty tensors and of dimensions of size 1 mean nothing; at::empty_like itself chooses them freely.
    """

    def to_meta(value):
        if isinstance(value, Tensor):
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        return [to_meta(v) for v in value] if isinstance(value, list) else value

    expected = op(*map(to_meta, args), **{key: to_meta(value) for key, value in kwargs.items()})
    actual = _flatten(results)
    expected = _flatten(expected)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert _layout(a) == _layout(e), f"{op}: {args} {kwargs}"


def _layout(tensor):
    strides = [stride for stride, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1 and tensor.numel() > 0]
    return tensor.shape, tensor.dtype, strides


def _flatten(results):
    if isinstance(results, Tensor):
        return [results]
    return [tensor for result in results for tensor in _flatten(result)]


def kept_tensors(function, inputs):
    """The tensors that autograd keeps for the backward pass of a call, beyond its inputs."""
    kept = {}
    given_storages = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor is not None}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in given_storages:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    del result
    return list(kept.values())


def products(device):
    """What matrix products networks use: "own", "unpacked", "torch", or "fastest" where CPU and sizes decide."""
    if device.type == torch._C._get_privateuse1_backend_name():
        return "fastest"  # the example backend computes on the CPU
    if device.type != "cpu" or fastops._C.cpu_capability() in ("default", "sve128", "sve256"):
        return "torch"
    return os.environ.get("FASTOPS_CPU_PRODUCTS", "fastest")


@functools.cache
def reads_around_matrices(device, dtype):
    """Whether products are PyTorch's that read around a matrix: oneDNN does, with AMX, and multiplies that by zeros."""
    if device.type == "cpu" and products(device) != "torch":
        return False
    matrix = torch.ones(19, 17, dtype=dtype)
    matrix[1::2] = float("nan")
    results = F.linear(matrix.to(device), torch.ones(64, 17, dtype=dtype, device=device))
    return results.cpu()[0::2].isnan().any().item()


def windows(values, length):
    """A matrix whose row r holds `length` of the values from the r-th on, beginning again after the last."""
    repeated = values.repeat(2 + length // len(values))
    return repeated.unfold(0, length, 1)[: len(values)]


class CalledOps(TorchDispatchMode):
    """While it is entered: the ops of fastops that are called, by name, with their arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    @property
    def names(self):
        """In the order of the calls."""
        return [name for name, _ in self.calls]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "fastops":
            self.calls.append((func._opname, args))
        return func(*args, **(kwargs or {}))
