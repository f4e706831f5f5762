"""What is computed: networks and single activations, for inference and for training; how much work that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastops

from . import models

INFERENCE, TRAINING = MODES = ("inference", "training")

Call = Callable[[Tensor], Tensor]


class Contender(NamedTuple):
    """One peer's way to compute the workload, and the parameters that it trains."""

    call: Call
    parameters: Sequence[Tensor] = ()

    @classmethod
    def of(cls, model: nn.Module) -> Contender:
        return cls(model, list(model.parameters()))


class Tensors(NamedTuple):
    """The input, and what the training step takes besides it: the targets, or the gradient of the output."""

    input: Tensor
    other: Tensor

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensors:
        return Tensors(*(tensor.to(device=device, dtype=dtype) for tensor in self))


@dataclass(frozen=True)
class Workload(ABC):
    """A computation at one size in one dtype. ``size``: rows, or for a single activation elements."""

    suite: str
    name: str
    size: int
    dtype: torch.dtype

    def case(self, mode: str) -> str:
        """The name under which results are reported."""
        return f"{self.suite}/{self.name}/{self.size_text}/{dtype_name(self.dtype)}/{mode}"

    @property
    def size_text(self) -> str:
        return str(self.size)

    @abstractmethod
    def pytorch(self, device: torch.device) -> Contender:
        """PyTorch's way, eagerly. Another call gives the same weights again, in other memory."""

    @abstractmethod
    def fastops(self, device: torch.device) -> Contender:
        """fastops' way, with the same weights."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """Input and targets, on the CPU; the same on every call."""

    @abstractmethod
    def distinct(self, tensors: Tensors) -> Tensors:
        """The part of the tensors that they repeat: what is to be computed in float64 for a reference."""

    @abstractmethod
    def training_step(self, contender: Contender, tensors: Tensors) -> Callable[[], object]:
        """A function that does one step."""

    @abstractmethod
    def results(self, contender: Contender, tensors: Tensors) -> list[Tensor]:
        """The output, and the gradients that a training step computes."""

    def inference(self, contender: Contender, tensors: Tensors) -> Callable[[], Tensor]:
        """A function that computes the output; to be called where no gradients are recorded."""
        call, input = contender.call, tensors.input
        return lambda: call(input)

    def flops(self, mode: str) -> int | None:
        """Floating-point operations of the matrix products; None where there are none."""
        return None

    def bytes_moved(self, mode: str) -> int | None:
        """Bytes that have to be read and written; None where arithmetic is what counts."""
        return None


@dataclass(frozen=True)
class Network(Workload):
    """An MLP, a gated MLP or an ensemble, trained with the mean squared error.

    There is no optimizer: the ops are what is compared.

    ``input_gradient``: whether the input needs a gradient, as within a larger model. ``propagated``: how many rows of
    each point go through the layers where fastops propagates derivatives with the values.
    """

    build: Callable[[], nn.Module]
    input_gradient: bool = False
    propagated: int = 1

    def model(self) -> nn.Module:
        model = self.build()
        models.initialize(model)
        return model

    def pytorch(self, device: torch.device) -> Contender:
        return Contender.of(self.model().to(device, self.dtype))

    def fastops(self, device: torch.device) -> Contender:
        return Contender.of(models.by_fastops(self.model().to(device, self.dtype)))

    def tensors(self) -> Tensors:
        generator = torch.Generator().manual_seed(1)
        model = self.model().to(self.dtype).eval()
        features = next(model.parameters()).shape[-1]
        candidates = torch.randn(2 * self.size + 16, features, generator=generator).to(self.dtype)
        input = models.rows_away_from_kinks(model, candidates)[: self.size].contiguous()
        with torch.no_grad():
            sizes = model(input).shape
        return Tensors(input, torch.randn(sizes, generator=generator).to(self.dtype))

    def distinct(self, tensors: Tensors) -> Tensors:
        return tensors

    def inference(self, contender: Contender, tensors: Tensors) -> Callable[[], Tensor]:
        models.set_dropout(contender.call, on=False)
        return super().inference(contender, tensors)

    def training_step(self, contender: Contender, tensors: Tensors) -> Callable[[], object]:
        call, parameters = contender
        models.set_dropout(call, on=True)
        input, target = tensors.input.detach().requires_grad_(self.input_gradient), tensors.other
        leaves = [*parameters, input]

        def step() -> None:
            for leaf in leaves:
                leaf.grad = None  # zero_grad(set_to_none=True)
            F.mse_loss(call(input), target).backward()

        return step

    def results(self, contender: Contender, tensors: Tensors) -> list[Tensor]:
        call, parameters = contender
        models.set_dropout(call, on=False)  # nobody draws the same numbers
        input = tensors.input.detach().requires_grad_(self.input_gradient)
        output = call(input)
        leaves = [*parameters, input] if self.input_gradient else list(parameters)
        return [output.detach(), *torch.autograd.grad(F.mse_loss(output, tensors.other), leaves)]

    def flops(self, mode: str) -> int:
        with torch.device("meta"):  # only the shapes count
            weights = [parameter for parameter in self.build().parameters() if parameter.dim() > 1]
        products = [2 * self.size * self.propagated * weight.numel() for weight in weights]
        if mode == INFERENCE:
            return sum(products)
        return 3 * sum(products) - (0 if self.input_gradient else products[0])


@dataclass(frozen=True)
class Converted(Network):
    """A model as it is, and with the fused ops that fastops.nn.convert puts into it."""

    def fastops(self, device: torch.device) -> Contender:
        contender = self.pytorch(device)
        assert isinstance(contender.call, nn.Module)
        fastops.nn.convert(contender.call)
        return contender


# A larger input repeats this many random numbers, so that the reference in float64 stays small.
_DISTINCT_ELEMENTS = 2**20


@dataclass(frozen=True)
class Elementwise(Workload):
    """An activation of ``size`` elements, with its default parameters; ``name`` is fastops' name of it.

    The bytes: a forward pass reads the input and writes the output, a backward pass reads the output's gradient and
    what was kept, and writes the input's gradient.
    """

    @property
    def size_text(self) -> str:
        return f"2^{self.size.bit_length() - 1}" if self.size.bit_count() == 1 else str(self.size)

    def pytorch(self, device: torch.device) -> Contender:
        return Contender(models.pytorch_activation(self.name))

    def fastops(self, device: torch.device) -> Contender:
        return Contender(getattr(fastops.functional, self.name))

    def tensors(self) -> Tensors:
        generator = torch.Generator().manual_seed(1)
        distinct = min(self.size, _DISTINCT_ELEMENTS)
        repetitions = -(-self.size // distinct)
        random = torch.randn(2, distinct, generator=generator).mul_(2).to(self.dtype)
        return Tensors(*random.repeat(1, repetitions)[:, : self.size].unbind())

    def distinct(self, tensors: Tensors) -> Tensors:
        return Tensors(*(tensor[:_DISTINCT_ELEMENTS] for tensor in tensors))

    def training_step(self, contender: Contender, tensors: Tensors) -> Callable[[], object]:
        call, input, gradient = contender.call, tensors.input.detach().requires_grad_(), tensors.other
        return lambda: torch.autograd.grad(call(input), input, gradient)

    def results(self, contender: Contender, tensors: Tensors) -> list[Tensor]:
        input = tensors.input.detach().requires_grad_()
        output = contender.call(input)
        return [output.detach(), *torch.autograd.grad(output, input, tensors.other)]

    def bytes_moved(self, mode: str) -> int:
        return (2 if mode == INFERENCE else 5) * self.size * self.dtype.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
