"""What may be left out on the way to an op: the dispatcher's Python side, and the calls of modules."""

from __future__ import annotations

from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.overrides import _is_torch_function_mode_enabled


def is_plain_eager(input: Tensor) -> bool:
    """Whether fastops._C may be called: nothing is being captured and no Python override wants to see the op."""
    return type(input) is Tensor and not is_compiling() and not _is_torch_function_mode_enabled()


def is_untouched(module: nn.Module) -> bool:
    """Whether calling the module does no more than its class says: it has no hooks and no ``forward`` of its own."""
    return "forward" not in module.__dict__ and not (
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether calling the layer does nothing but multiply with its weight and add its bias."""
    return type(layer).forward is nn.Linear.forward and is_untouched(layer)
