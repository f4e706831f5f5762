"""What fastops.nn.MLP and EnsembleMLP have in common: slices, and derivatives in the input."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from . import _C, functional
from ._eager import check_dense
from ._jet import check_directions
from ._network import Network
from ._propagation import check_square


class Perceptron(nn.Sequential):
    """Linear layers and activations."""

    residual: bool = False  # whether the input is added to the result
    _is_ensemble = False  # whether each layer has the parameters of several networks

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return nn.Sequential.__getitem__(self, index)

    __getitem__.__dict__.update(nn.Sequential.__getitem__.__dict__)  # scripted modules have it, too

    def _one_by_one(self, input: Tensor) -> Tensor:
        for module in self:
            input = module(input)
        return input

    @torch.jit.unused
    def value_gradient_laplacian(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs, their gradients and their Laplacians in the input (:func:`fastops.functional.mlp_laplacian`).

        Args:
            input: points [..., in_features].

        Returns:
            [..., out_features], [..., out_features, in_features] and [..., out_features].

        Raises:
            RuntimeError: the modules are no plain MLP: there is a norm, a residual connection or active dropout, the
                activations differ, or one has hooks.
        """
        if not is_compiling() and not self.residual:
            results = _C.jets_of_modules(input, self._modules, self._is_ensemble, True)
            if results is not None:
                return results
        input, network = self._plain("value_gradient_laplacian", input)
        return functional.mlp_laplacian(input, **network)

    @torch.jit.unused
    def value_jacobian(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs and their derivatives in the input (:func:`fastops.functional.mlp_jacobian`).

        In the time of 1 + in_features forward passes, or in reverse mode where the inputs are three or more and at
        least twice as many as the outputs: the gradient of one output takes two or three.

        Args:
            input: points [..., in_features].

        Returns:
            [..., out_features] and [..., out_features, in_features].

        Raises:
            RuntimeError: as :meth:`value_gradient_laplacian`.
        """
        return self._value_and_jacobian("value_jacobian", input)

    @torch.jit.unused
    def jacobian(self, input: Tensor) -> Tensor:
        """The Jacobian of :meth:`value_jacobian` alone."""
        return self._value_and_jacobian("jacobian", input)[1]

    @torch.jit.unused
    def value_jacobian_hessian(self, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs and their first and second derivatives in the input (:func:`fastops.functional.mlp_hessian`).

        Of a few inputs in one forward pass, as :meth:`value_gradient_laplacian`, which has the trace alone and takes
        less.

        Args:
            input: points [..., in_features].

        Returns:
            [..., out_features], [..., out_features, in_features] and [..., out_features, in_features, in_features].

        Raises:
            RuntimeError: as :meth:`value_gradient_laplacian`.
        """
        return self._value_jacobian_hessian("value_jacobian_hessian", input)

    @torch.jit.unused
    def hessian(self, input: Tensor) -> Tensor:
        """The Hessians of :meth:`value_jacobian_hessian` alone."""
        return self._value_jacobian_hessian("hessian", input)[2]

    @torch.jit.unused
    def divergence(self, input: Tensor, probe: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outputs of a vector field, and its divergence, the trace of the Jacobian.

        With a probe v it is estimated by ``v @ J @ v`` in the time of two forward passes. The mean over probes whose
        elements are independent, with mean 0 and variance 1, is exact (Hutchinson, A Stochastic Estimator of the Trace
        of the Influence Matrix for Laplacian Smoothing Splines, 1990).

        Args:
            input: points [..., features]; the outputs are as many.
            probe: of the input's shape; None for the exact divergence, which is little more work than the outputs with
                one or two activations, the output's among them (:func:`fastops.functional.mlp_divergence`), and
                1 + features times that with more.

        Returns:
            [..., features] and [...].

        Raises:
            RuntimeError: as :meth:`value_gradient_laplacian`.
            ValueError: the outputs are not as many as the inputs, or the probe has another shape.
        """
        shape = input.shape if isinstance(input, Tensor) else None
        input, network = self._plain("divergence", input)
        weights, owner = network["weights"], f"fastops.nn.{type(self).__name__}.divergence"
        if weights[0].dim() > 1 and weights[-1].dim() > 1:  # else the functions below say so
            check_square(owner, weights[0].size(-1), weights[-1].size(-2))
        if probe is None:
            return functional.mlp_divergence(input, **network)
        check_directions(owner.removeprefix("fastops."), "probe", probe, input)
        if probe.shape != shape:
            raise ValueError(f"{owner}: probe must have the input's shape {list(shape)}, but has {list(probe.shape)}")
        probe = self._points(probe)
        value, first, _ = functional.mlp_jet(input, probe.unsqueeze(-2), **network, order=1)
        return value, (first.squeeze(-2) * probe).sum(-1)

    def _points(self, input: Tensor) -> Tensor:
        """The input as the op takes it."""
        return input

    @torch.jit.unused
    def _network(self) -> Network | None:
        """The modules as one network, where they are."""
        raise NotImplementedError

    @torch.jit.unused
    def _value_and_jacobian(self, method: str, input: Tensor) -> tuple[Tensor, Tensor]:
        """What :meth:`value_jacobian` returns, for the method of this name."""
        if not is_compiling() and not self.residual:
            results = None if self._is_ensemble else _C.gradients_of_modules(input, self._modules)
            if results is None:
                results = _C.jets_of_modules(input, self._modules, self._is_ensemble, False)
            if results is not None:
                return results
        input, network = self._plain(method, input)
        return functional.mlp_jacobian(input, **network)

    @torch.jit.unused
    def _value_jacobian_hessian(self, method: str, input: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What :meth:`value_jacobian_hessian` returns, for the method of this name."""
        input, network = self._plain(method, input)
        return functional.mlp_hessian(input, **network)

    @torch.jit.unused
    def _plain(self, method: str, input: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The points, and the arguments of their network."""
        name = f"nn.{type(self).__name__}.{method}"
        check_dense(name, input)
        network = self._network()
        if network is None:
            raise RuntimeError(
                f"fastops.{name}: its modules are more than linear layers with the same activation between them: "
                "there is a norm, a residual connection or active dropout (call eval()), the activations differ, one "
                "has hooks or was replaced, there are hooks for all modules, as under FlopCounterMode, or the weights "
                "are no plain tensors, as those that FSDP2 has not gathered (register_fsdp_forward_method)"
            )
        names = ("weights", "biases", "activation", "output_activation", "params", "output_params")
        return self._points(input), dict(zip(names, (*network.parameters, *network.functions), strict=True))
