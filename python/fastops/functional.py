"""The ops as functions.

One function for every activation (``softshrink``, ``gelu``, ``silu``, ...), and the fused ops below. An ``activation``
is the name of one of those functions; ``params`` are its parameters in order (``[0.3]`` for ``softshrink`` with
``lambd=0.3``), its defaults where left out. All take float32, float64, bfloat16 and float16 tensors of any strides,
compute 16-bit types in float32, and are differentiable to any order, in reverse and forward mode.
"""

from __future__ import annotations

from typing import List, Optional  # noqa: UP035  (TorchScript reads these)

import torch
from torch import Tensor

from . import _activations
from ._activations import *  # noqa: F403
from ._eager import call, check_tensor
from ._jet import mlp_jet
from ._lists import NOT_TRACED, biases_of, list_of
from ._propagation import mlp_divergence, mlp_hessian, mlp_jacobian, mlp_laplacian
from ._steps import dropout_seed

__all__ = [
    *_activations.FUNCTIONS,
    "act_mul",
    "bias_act",
    "gated_act",
    "gated_mlp",
    "linear_act",
    "mlp",
    "mlp_divergence",
    "mlp_hessian",
    "mlp_jacobian",
    "mlp_jet",
    "mlp_laplacian",
    "sequential",
]


def __dir__() -> list[str]:
    return __all__


def bias_act(
    input: Tensor,
    bias: Optional[Tensor] = None,
    activation: str = "relu",
    params: Optional[List[float]] = None,
) -> Tensor:
    """``activation(input + bias)`` in one pass.

    Args:
        input: [..., features].
        bias: [features], with the dtype and device of ``input``; or None.
        activation: name of the activation.
        params: its parameters; None for the defaults.

    Returns:
        A tensor of ``input``'s shape and dtype.

    Raises:
        RuntimeError: tensors on different devices, or one whose memory was freed.
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: an unknown activation, invalid parameters, or a bias of the wrong shape.
    """
    if not torch.jit.is_scripting():
        return call(torch.ops.fastops.bias_act, input, bias, activation, [] if params is None else params)
    return torch.ops.fastops.bias_act(input, bias, activation, list_of(params))


def act_mul(gate: Tensor, up: Tensor, activation: str = "silu", params: Optional[List[float]] = None) -> Tensor:
    """``activation(gate) * up``: a gated linear unit whose halves are two tensors.

    Shazeer, GLU Variants Improve Transformer, 2020: ``sigmoid`` gives GLU, ``relu`` ReGLU, ``gelu`` GeGLU and ``silu``
    SwiGLU.

    Args:
        gate: any shape and strides.
        up: the same shape, dtype and device as ``gate``; nothing is broadcast.
        activation: name of the activation.
        params: its parameters; None for the defaults.

    Returns:
        A contiguous tensor of ``gate``'s shape and dtype.

    Raises:
        RuntimeError: tensors on different devices, or one whose memory was freed.
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: shapes that differ, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        return call(torch.ops.fastops.act_mul, gate, up, activation, [] if params is None else params)
    return torch.ops.fastops.act_mul(gate, up, activation, list_of(params))


def gated_act(
    input: Tensor,
    activation: str = "silu",
    params: Optional[List[float]] = None,
    gate_last: bool = False,
) -> Tensor:
    """``activation(gate) * up`` on the two halves of ``input``'s last dimension.

    The gate is the first half, or with ``gate_last`` the second: ``torch.nn.functional.glu(x)`` is
    ``gated_act(x, "sigmoid", gate_last=True)``.

    Args:
        input: [..., 2 * features].
        activation: name of the activation.
        params: its parameters; None for the defaults.
        gate_last: whether the gate is the second half.

    Returns:
        [..., features], contiguous, of ``input``'s dtype.

    Raises:
        RuntimeError: a tensor whose memory was freed.
        TypeError: an argument of another kind, an unsupported dtype.
        ValueError: an odd last dimension, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        return call(torch.ops.fastops.gated_act, input, activation, [] if params is None else params, gate_last)
    return torch.ops.fastops.gated_act(input, activation, list_of(params), gate_last)


def linear_act(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: str = "relu",
    params: Optional[List[float]] = None,
) -> Tensor:
    """``activation(input @ weight.T + bias)``: a linear layer with its activation.

    Args:
        input: [..., in_features].
        weight: [out_features, in_features], with the dtype and device of ``input``.
        bias: [out_features], with the same, or None.
        activation: name of the activation.
        params: its parameters; None for the defaults.

    Returns:
        [..., out_features], of ``input``'s dtype.

    Raises:
        RuntimeError: tensors on different devices, or one whose memory was freed.
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: shapes that do not fit, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        return call(torch.ops.fastops.linear_act, input, weight, bias, activation, [] if params is None else params)
    return torch.ops.fastops.linear_act(input, weight, bias, activation, list_of(params))


@torch.jit.unused
def _traced_layer(
    input: Tensor, weight: Tensor, bias: Optional[Tensor], activation: str, params: Optional[List[float]]
) -> Tensor:
    if weight.dim() == 2:
        return linear_act(input, weight, bias, activation, params)
    rows = input.flatten(1, -2) if input.dim() > 2 else input.unsqueeze(1)
    product = rows @ weight.mT
    output = product if bias is None else product + bias.unsqueeze(1)
    return bias_act(output.reshape(input.shape[:-1] + output.shape[-1:]), None, activation, params)


def mlp(
    input: Tensor,
    weights: List[Tensor],
    biases: Optional[List[Optional[Tensor]]] = None,
    activation: str = "relu",
    output_activation: str = "identity",
    params: Optional[List[float]] = None,
    output_params: Optional[List[float]] = None,
    checkpoint: bool = False,
) -> Tensor:
    """A multi-layer perceptron of any depth in one op.

    Layer i computes ``h[i + 1] = activation(h[i] @ weights[i].T + biases[i])`` from ``h[0] = input``; the last layer
    uses ``output_activation``. For the backward pass one tensor per hidden layer is kept, or none with ``checkpoint``.

    Args:
        input: [..., in_features]; of an ensemble [members, ..., in_features].
        weights: one [out_features, in_features] tensor per layer; each layer's in_features are the outputs of the
            layer before. Or [members, out_features, in_features], an ensemble of networks. They have the dtype and
            device of ``input``, and so have the biases.
        biases: one [out_features] or [members, out_features] tensor or None per layer; None for no biases at all.
        activation: name of the hidden layers' activation.
        output_activation: name of the last layer's activation.
        params: parameters of ``activation``; None for its defaults.
        output_params: parameters of ``output_activation``; None for its defaults.
        checkpoint: keep nothing but the arguments for the backward pass, which computes the hidden layers again.

    Returns:
        [..., out_features of the last layer], of ``input``'s dtype, with the members of an ensemble in front.

    Raises:
        RuntimeError: tensors on different devices, or one whose memory was freed.
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: no weights, shapes that do not chain, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        if biases is None:
            biases = [None] * (len(weights) if hasattr(weights, "__len__") else 0)
        if torch.jit.is_tracing():  # it has no lists of optional tensors
            last = len(weights) - 1
            for i in range(last):
                input = _traced_layer(input, weights[i], biases[i], activation, params)
            return _traced_layer(input, weights[last], biases[last], output_activation, output_params)
        return call(
            torch.ops.fastops.mlp,
            input,
            weights,
            biases,
            activation,
            output_activation,
            [] if params is None else params,
            [] if output_params is None else output_params,
            checkpoint,
        )
    layer_biases = biases_of(weights, biases)
    return torch.ops.fastops.mlp(
        input, weights, layer_biases, activation, output_activation, list_of(params), list_of(output_params), checkpoint
    )


def gated_mlp(
    input: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor,
    down_weight: Tensor,
    gate_bias: Optional[Tensor] = None,
    up_bias: Optional[Tensor] = None,
    down_bias: Optional[Tensor] = None,
    activation: str = "silu",
    params: Optional[List[float]] = None,
    checkpoint: bool = False,
) -> Tensor:
    """The gated feed-forward block of LLaMA and others, in one op.

    ``(activation(input @ gate_weight.T + gate_bias) * (input @ up_weight.T + up_bias)) @ down_weight.T + down_bias``;
    Shazeer, GLU Variants Improve Transformer, 2020.

    Args:
        input: [..., in_features].
        gate_weight, up_weight: [hidden_features, in_features]; all tensors have the dtype and device of ``input``.
        down_weight: [out_features, hidden_features].
        gate_bias, up_bias: [hidden_features] or None.
        down_bias: [out_features] or None.
        activation: name of the activation.
        params: its parameters; None for the defaults.
        checkpoint: keep nothing but the arguments for the backward pass, which computes the projections again.

    Returns:
        [..., out_features], of ``input``'s dtype.

    Raises:
        RuntimeError: tensors on different devices, or one whose memory was freed.
        TypeError: an argument of another kind, an unsupported dtype, or two of them.
        ValueError: shapes that do not fit, an unknown activation or invalid parameters.
    """
    if not torch.jit.is_scripting():
        return call(
            torch.ops.fastops.gated_mlp,
            input,
            gate_weight,
            up_weight,
            down_weight,
            gate_bias,
            up_bias,
            down_bias,
            activation,
            [] if params is None else params,
            checkpoint,
        )
    values = list_of(params)
    return torch.ops.fastops.gated_mlp(
        input, gate_weight, up_weight, down_weight, gate_bias, up_bias, down_bias, activation, values, checkpoint
    )


def sequential(
    input: Tensor,
    parameters: List[Optional[Tensor]],
    steps: str,
    params: Optional[List[float]] = None,
    seed: Optional[Tensor] = None,
) -> Tensor:
    """The layers of a network one after another in one op, with normalization, dropout and residual connections.

    ``steps`` are names separated by spaces. Each takes its tensors from ``parameters`` and its numbers from ``params``,
    in order:

    ================ ================= ===================== =======================================================
    step             tensors           numbers               h becomes
    ================ ================= ===================== =======================================================
    ``linear``       weight, bias      none                  ``h @ weight.T + bias``
    ``gated_linear`` weight, bias,     none                  ``f(h @ weight.T + bias) * (h @ up_weight.T + up_bias)``,
                     up_weight,                              f being the activation that must be the next step
                     up_bias
    ``layer_norm``   weight, bias      eps                   ``(h - mean(h)) / sqrt(var(h) + eps) * weight + bias``
    ``rms_norm``     weight            eps                   ``h / sqrt(mean(h**2) + eps) * weight``
    ``scale``        weight            none                  ``h * weight`` (LayerScale)
    ``dropout``      none              p                     0 with probability p, else ``h / (1 - p)``
    an activation    none              all parameters of it  ``activation(h)``
    ``residual``     none              none                  h, which is kept for
    ``add``          none              none                  h + what the last ``residual`` kept, used once
    ================ ================= ===================== =======================================================

    ``"residual layer_norm linear gelu dropout linear dropout add"`` is the feed-forward half of a transformer's block.
    What lies between two products is computed in float32 (float64 stays) and rounded once. For the backward pass the
    results of products and of ``add`` are kept, and nothing else: no statistics, no masks.

    Ba, Kiros, Hinton, Layer Normalization, 2016; Zhang, Sennrich, Root Mean Square Layer Normalization, 2019;
    Srivastava et al., Dropout, 2014; Touvron et al., Going deeper with Image Transformers (LayerScale), 2021.

    Args:
        input: [..., in_features].
        parameters: weights of linear layers [out_features, in_features]; all others [features]. None for no bias, and
            for norms without weight or bias. A 16-bit weight of a linear layer makes that product a 16-bit one.
        steps: the names.
        params: the numbers; None if the steps take none.
        seed: an int64 tensor without dimensions, on the input's device. The same seed drops the same elements, on every
            device. None draws one from the device's default generator (``torch.manual_seed``) if there is a dropout.

    Returns:
        [..., features of the last step], in the dtype of the last product, or of the wider of what was added.

    Raises:
        RuntimeError: tensors on different devices, one whose memory was freed, or ``torch.jit.trace``.
        TypeError: an argument of another kind, an unsupported dtype, float64 beside others, a seed that is not int64.
        ValueError: an unknown step, too few or too many parameters or numbers, shapes that do not chain, a number out
            of its range, a ``residual`` without ``add`` or the reverse.
    """
    if not torch.jit.is_scripting() and not isinstance(steps, str):
        raise TypeError(f"fastops.sequential: steps must be a string, but is a {type(steps).__qualname__}")
    if seed is None and steps.find("dropout") >= 0:
        if not torch.jit.is_scripting():
            check_tensor("sequential", input)
        seed = dropout_seed(input)
    if not torch.jit.is_scripting():
        if torch.jit.is_tracing():
            raise RuntimeError(NOT_TRACED.format("sequential"))
        return call(torch.ops.fastops.sequential, input, parameters, steps, [] if params is None else params, seed)
    return torch.ops.fastops.sequential(input, parameters, steps, list_of(params), seed)
