"""Multi-layer perceptrons as arguments of the ops, drawn or of given sizes, and what they compute, with its bound."""

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from reference import Approximate, activation, keeps_output, rounded_parameters
from strategies import draw_activation, draw_tensor, features, leading_sizes, random_tensor


@dataclass
class Network:
    """The arguments of an mlp, and a gradient of its output."""

    input: torch.Tensor
    weights: list
    biases: list
    hidden: tuple  # an activation's name and its parameters
    output: tuple
    grad: torch.Tensor

    @property
    def arguments(self):
        """What mlp takes."""
        params = [list(self.hidden[1]), list(self.output[1])]
        return self.input, self.weights, self.biases, self.hidden[0], self.output[0], *params

    @property
    def leaves(self):
        """The tensors that have gradients, in the order of output_mask; None for an absent bias."""
        return [self.input, *itertools.chain(*zip(self.weights, self.biases, strict=True))]

    def activation_of(self, layer):
        """The name and the parameters of a layer's activation."""
        return self.hidden if layer + 1 < len(self.weights) else self.output


def draw_network(data, dtype, device, max_depth=4, members=None, sizes=None):
    """A network of any depth, with or without each bias, any of its sizes zero; or an ensemble of so many."""
    own = () if members is None else (members,)
    sizes = sizes or data.draw(st.lists(features, min_size=2, max_size=1 + max_depth))
    leading = (*own, *data.draw(leading_sizes))
    layers = list(itertools.pairwise(sizes))
    return Network(
        input=draw_tensor(data, (*leading, sizes[0]), dtype, device),
        weights=[draw_tensor(data, (*own, n, k), dtype, device, 1 / math.sqrt(max(1, k))) for k, n in layers],
        biases=[draw_tensor(data, (*own, n), dtype, device) if data.draw(st.booleans()) else None for _, n in layers],
        hidden=draw_activation(data),
        output=draw_activation(data),
        grad=draw_tensor(data, (*leading, sizes[-1]), dtype, device),
    )


def plain_network(rows, *sizes, dtype, device, output="identity"):
    """A GELU network of these sizes."""
    layers = list(itertools.pairwise(sizes))
    return Network(
        input=random_tensor((rows, sizes[0]), dtype, device, seed=0),
        weights=[random_tensor((n, k), dtype, device, seed=1, scale=1 / math.sqrt(max(1, k))) for k, n in layers],
        biases=[random_tensor((n,), dtype, device, seed=2) for _, n in layers],
        hidden=("gelu", ()),
        output=(output, ()),
        grad=random_tensor((rows, sizes[-1]), dtype, device, seed=3),
    )


# ---- the reference, with its bound ----


def apply(z, name, params):
    """The activation at z, as it is stored."""
    return z if name == "identity" else z.activation(name, params).stored()


def derivative(z, name, params):
    """The activation's derivative at z, from what the op keeps: the output where that suffices."""
    if keeps_output(name, tuple(params), z.dtype):
        return apply(z, name, params).gradient_from_output(name, params)
    return z.activation(name, params, 1)


def expected_network(network):
    """The output and the gradients, in the order of `leaves`."""
    h = Approximate.exact(network.input).as_rows()
    layers = []
    for i, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        z = h.linear(weight, bias)
        layers.append((h, z))
        h = apply(z, *network.activation_of(i))
    grad = Approximate.exact(network.grad).as_rows()
    grads = []
    for i, (below, z) in reversed(list(enumerate(layers))):
        through = grad if network.activation_of(i)[0] == "identity" else grad * derivative(z, *network.activation_of(i))
        through = through.stored()
        grads.append(through.sum_rows().stored())
        grads.append((through.T @ below).stored())
        grad = (through @ Approximate.exact(network.weights[i])).stored()
    grads.append(grad.view(*network.input.shape))
    return h.view(*network.grad.shape), grads[::-1]


def assert_agrees_with_autograd(network, output, grads):
    """The reference above is what autograd makes of the plain formula in float64."""
    leaves = [leaf if leaf is None else leaf.detach().cpu().double().requires_grad_() for leaf in network.leaves]
    h = leaves[0]
    for i in range(len(network.weights)):
        name, params = network.activation_of(i)
        h = F.linear(h, *leaves[1 + 2 * i : 3 + 2 * i])
        h = activation(name, h, rounded_parameters(params, network.input.dtype))
    torch.testing.assert_close(output.value, h.detach(), rtol=1e-9, atol=1e-9)
    wanted = [leaf for leaf in leaves if leaf is not None]
    by_autograd = torch.autograd.grad(h, wanted, network.grad.cpu().double())
    by_hand = [grad.value for grad, leaf in zip(grads, leaves, strict=True) if leaf is not None]
    torch.testing.assert_close(by_hand, list(by_autograd), rtol=1e-9, atol=1e-9)
