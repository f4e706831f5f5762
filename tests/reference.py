"""What the activations should compute, in float64 by PyTorch, and how far from it a result may be.

The error budget, which every test uses and which stands here alone:

* 16-bit tensors are computed in float32 and each result is rounded once. eps is that of the dtype computed with.
* A value f(x) takes a handful of rounded operations and an elementary function, each good to eps or so: 4 eps. The
  derivative of order k multiplies the number of operations by about k + 1: 4 (k + 1) eps.
* These eps count relative to the result; plus to what the result moves when x itself is off by eps, |x f'(x)|: the
  exponential of a rounded argument cannot do better; plus to `natural_scale`, the size of the terms that cancel in the
  formula, for the formulas where terms do. Where none do in the tails, `Approximate.tail` leaves that out.
* Below the smallest normal number a result may be flushed to zero, and so may a product. With logistic functions that
  happens where exp(-x) overflows, so the bound is the smallest normal number times max(1, |x|).
* A sum of n products is off by at most n eps/2 of the sum of their magnitudes, whatever the order of the additions. A
  sum over n rows is done in blocks: at most (2 sqrt(n) + 64) eps/2.
* Errors of arguments go through an operation to first order; through an activation by its values at both ends of the
  argument's interval, which holds at jumps too; through a sine, which turns, by the largest slope. At a kink there is
  no derivative of order 2 and more: what PyTorch gives there is that of one side, what another formula gives may be
  that of the other.
* Apple's GPUs may take a subnormal float32 for the zero of its sign, as an operand and as a result; the specification
  of Metal's language allows it. `as_taken` has what such a number may be there, and an argument is off by as much.

`Approximate` applies these rules: a float64 value with its bound, computed along with it.
"""

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import fastops

ACTIVATIONS = {entry["name"]: entry for entry in fastops._C.activations()}


def _tanhshrink(x):
    """x - tanh(x) without cancellation: (x cosh(x) - sinh(x)) / cosh(x) as a series, whose terms have one sign."""
    near = x.clamp(-0.7, 0.7)
    series = sum(2 * k / math.factorial(2 * k + 1) * near ** (2 * k + 1) for k in range(1, 10))
    return torch.where(x.abs() < 0.7, series / near.cosh(), F.tanhshrink(x))


# Activations that PyTorch has no function for; hardsigmoid, whose derivative in torch.nn.functional has float32
# constants whatever the dtype, and no derivative in turn; and tanhshrink, which cancels there.
SPELLED_OUT = {
    "tanhshrink": _tanhshrink,
    "identity": lambda x: x.clone(),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu_squared": lambda x: F.relu(x).square(),
    "hardsigmoid": lambda x: (F.hardtanh(x, -3, 3) + 3) / 6,
    "sin": lambda x, omega: torch.sin(omega * x),
}

# Forms of the functions whose higher derivatives PyTorch gets as NaN for large arguments.
_TWICE_DIFFERENTIABLE = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def _cubic(x):
    return x + 0.044715 * x**3


# Forms without cancellation or overflow of the activations whose tails, or whose derivative's, PyTorch loses to them.
_WHOLE_TAILS = {
    "gelu": lambda x: x * (0.5 * torch.special.erfc(-math.sqrt(0.5) * x)),
    "gelu_tanh": lambda x: x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * _cubic(x.clamp(-1e3, 1e3))),
    "hardswish": lambda x: x * ((F.hardtanh(x, -3, 3) + 3) / 6),
    "sigmoid": lambda x: torch.where(x > 0, 1 - torch.sigmoid(-x), torch.sigmoid(x)),
}

# Activations whose terms cancel near 0 but not in their tails, where the value or the derivative approaches 0.
WITH_TAILS = ["gelu", "gelu_tanh", "quick_gelu", "silu", "mish", "sigmoid"]

# Not one function of PyTorch but several: the zeros' signs and the infinities in their gradients are the composition's.
COMPOSED = {"quick_gelu", "relu_squared", "sin", "tanhshrink"}

# Parameters worth a test of their own: signs, zeros, and halves and quarters that every dtype holds exactly.
_INTERESTING = {
    "leaky_relu": [(0.25,), (0.0,), (-0.5,), (1.5,)],
    "elu": [(2.5,), (0.0,), (-0.5,)],
    "softplus": [(2.0, 3.0), (0.5, 1.0)],
    "softshrink": [(0.25,), (0.0,), (3.0,)],
    "hardshrink": [(0.25,), (0.0,), (3.0,), (-1.0,)],
    "hardtanh": [(-0.25, 2.5), (0.0, 6.0), (0.5, 0.5)],
    "sin": [(30.0,), (-0.5,), (0.0,)],
}

_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_ALPHA = 1.6732632423543772848170429916717

# Their derivatives' tails are less than the rounding of a 16-bit output: they are had from the input there.
LOST_IN_ROUNDING = {"elu", "selu"}

# f'(x) as a function of y = f(x), for the activations whose derivative can be had from their output.
GRADIENT_FROM_OUTPUT = {
    "identity": lambda y: torch.ones_like(y),
    "relu": lambda y: (y > 0).to(y),
    "relu6": lambda y: ((y > 0) & (y < 6)).to(y),
    "leaky_relu": lambda y, negative_slope: torch.where(y > 0, torch.ones_like(y), negative_slope),
    "elu": lambda y, alpha: torch.where(y > 0, 1.0, y + alpha),
    "selu": lambda y: torch.where(y > 0, _SELU_SCALE, y + _SELU_SCALE * _SELU_ALPHA),
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
    "softshrink": lambda y, lambd: (y != 0).to(y),
    "hardshrink": lambda y, lambd: (y != 0).to(y),
}


def flushed(values):
    """The numbers with the zero of its sign for each that is subnormal in float32."""
    return torch.where(values.abs() < torch.finfo(torch.float32).smallest_normal, 0 * values, values)


def as_taken(values, device):
    """All that the device may take the numbers for."""
    return [values, flushed(values)] if device.type == "mps" else [values]


def activation(name, x, params=()):
    """The activation by PyTorch, differentiable, in x's dtype. Without `params`, with the defaults."""
    function = SPELLED_OUT.get(name) or getattr(F, name, None) or getattr(torch, name, None)
    if function is None:
        raise LookupError(f"PyTorch has no function {name}: add its formula to SPELLED_OUT in tests/reference.py")
    return function(x, **_keywords(name, params))


def formulas(name, params=()):
    """The activation by PyTorch, and in a form that keeps its tails if that is another."""
    by_pytorch = functools.partial(activation, name, params=params)
    return [by_pytorch, _WHOLE_TAILS[name]] if name in _WHOLE_TAILS else [by_pytorch]


def _keywords(name, params):
    defaults = ACTIVATIONS[name]["parameters"]
    return dict(zip(defaults, params or defaults.values(), strict=True))


def is_valid(name, params):
    """Whether the activation takes these parameters."""
    constraint = ACTIVATIONS[name]["constraint"]
    return not constraint or eval(constraint, {}, _keywords(name, params))


@functools.cache
def output_suffices(name, params=()):
    """Whether the op's derivative can be had from its output."""
    empty = torch.empty(0)
    try:
        torch.ops.fastops.activation_backward(empty, empty, name, params, True)
    except ValueError:
        return False
    return True


def keeps_output(name, params=(), dtype=torch.float32):
    """Whether autograd has the op's derivative from its output."""
    lost = dtype.itemsize == 2 and name in LOST_IN_ROUNDING
    return name in GRADIENT_FROM_OUTPUT and output_suffices(name, params) and not lost


def parameter_sets(name):
    """The default parameters and interesting others."""
    defaults = tuple(ACTIVATIONS[name]["parameters"].values())
    unknown = [tuple(2 * p for p in defaults), tuple(p / 2 for p in defaults)] if defaults else []
    others = _INTERESTING.get(name, unknown)
    return [defaults, *(params for params in others if is_valid(name, params))]


def kinks(name, params):
    """Where this or another activation changes its branch."""
    places = {0.0, 1.0, 3.0, 6.0, 20.0, *params}
    if name == "softplus":
        beta, threshold = params
        places.add(threshold / beta)
    return sorted(places | {-place for place in places})


def jumps(name, params):
    """Where the activation or a derivative may be farther from its value nearby than at both ends of an interval."""
    if name != "softplus":
        return [0.0]
    beta, threshold = params
    place = threshold / beta
    return [0.0, place - 1e-15 * abs(place), place + 1e-15 * abs(place)]


def compute_dtype(dtype):
    """The dtype that tensors of this dtype are computed with."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rounded_parameters(params, dtype):
    """The parameters as a computation for tensors of this dtype sees them."""
    return tuple(torch.tensor(params, dtype=compute_dtype(dtype)).tolist())


def differentiate(function, x, count):
    """[f(x), f'(x), ...] up to the derivative of order `count`, elementwise."""
    x = x.detach().clone().requires_grad_()
    y = function(x)
    results = [y.detach()]
    for _ in range(count):
        if y.requires_grad:
            y = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True, materialize_grads=True)[0]
        else:
            y = torch.zeros_like(x)
        results.append(y.detach())
    return results


def derivatives(name, x, params, count):
    """The activation and its derivatives up to order `count` by PyTorch, in x's dtype."""
    if count > 1 and name in _TWICE_DIFFERENTIABLE:
        return differentiate(_TWICE_DIFFERENTIABLE[name], x, count)
    return differentiate(lambda v: activation(name, v, params), x, count)


def derivatives_from_output(name, y, params, count):
    """The derivatives of orders 0 to `count` of f'(x) as a function of the output y."""
    return differentiate(lambda v: GRADIENT_FROM_OUTPUT[name](v, **_keywords(name, params)), y, count)


def natural_scale(name, x, params, order):
    """The size of the terms that cancel in the formula of the derivative of this order; zero where nothing cancels.

    1 - s, s a logistic function or tanh, keeps an error of eps until s rounds to 1: what it is multiplied with counts
    up to there, which is |x| = 40 for the logistic function and 8 for the tanh of gelu_tanh in float64.
    """
    size = x.abs()
    one = torch.ones_like(x)
    if name in ("gelu", "gelu_tanh") and order == 0:
        return size
    if name == "gelu_tanh":
        bounded = size.clamp(max=8)
        return torch.maximum(one, bounded * (0.8 + 0.107 * bounded**2) ** order)
    if name in ("silu", "mish", "quick_gelu") and order > 0:
        return torch.maximum(one, size.clamp(max=40)) * (1.702**order if name == "quick_gelu" else 1)
    if name in ("gelu", "sigmoid", "tanh", "tanhshrink", "hardswish") and order > 0:
        return one
    if name == "softplus":
        beta, threshold = params
        z = beta * x
        # Which branch is taken this close to the threshold depends on how the product is rounded; and PyTorch's second
        # derivative takes the other one at the threshold itself.
        unsure = (z - threshold).abs() <= 1e-6 * abs(threshold)
        unsure &= order > 1 or math.frexp(beta)[0] != 0.5
        terms = beta ** (order - 1)
        # Whichever the branch, in units of any eps. Not infinite, as that times a zero of the next layer is no bound.
        other_branch = (z.abs() + 1) * terms / torch.finfo(torch.float64).eps
        return torch.where(unsure, other_branch, terms if order > 1 else 0.0)
    if name == "sin":
        # The rounding of omega x may move it by whole turns: not infinite, as above.
        omega = abs(params[0])
        return omega**order * (omega * size).clamp(max=1 / torch.finfo(torch.float64).eps)
    return 0 * one if name in _KNOWN else torch.maximum(one, size)


# The activations whose formulas were looked at for natural_scale.
_KNOWN = set(
    "identity relu relu6 leaky_relu elu selu gelu gelu_tanh quick_gelu silu mish softplus sigmoid tanh softshrink "
    "hardshrink tanhshrink hardtanh hardswish hardsigmoid relu_squared".split()
)


@dataclass
class Approximate:
    """A float64 value and a bound on the error of its computation for tensors of a dtype."""

    value: Tensor
    error: Tensor
    dtype: torch.dtype

    @classmethod
    def exact(cls, tensor):
        """The tensor itself."""
        value = tensor.detach().cpu().double()
        return cls(value, (value - as_taken(value, tensor.device)[-1]).abs().nan_to_num(nan=0.0), tensor.dtype)

    @property
    def eps(self):
        return torch.finfo(compute_dtype(self.dtype)).eps

    def _like(self, value, error):
        return Approximate(value, error, self.dtype)

    def __add__(self, other):
        value = self.value + other.value
        return self._like(value, self.error + other.error + self.eps * value.abs())

    def __mul__(self, other):
        value = self.value * other.value
        error = self.value.abs() * other.error + self.error * (other.value.abs() + other.error)
        may_underflow = ((self.value != 0) | (self.error != 0)) & ((other.value != 0) | (other.error != 0))
        error = error + may_underflow.double() * torch.finfo(compute_dtype(self.dtype)).smallest_normal
        return self._like(value, error + self.eps * value.abs())

    def __matmul__(self, other):
        magnitude = other.value.abs()
        error = self.value.abs() @ other.error + self.error @ (magnitude + other.error)
        products = 2 if self.dtype == torch.float64 else 1  # the reference is one of those that are rounded
        error = error + products * self.value.shape[-1] * self.eps / 2 * (self.value.abs() @ magnitude)
        return self._like(self.value @ other.value, error)

    @property
    def T(self):
        return self._like(self.value.T, self.error.T)

    def linear(self, weight, bias):
        """self @ weight.T + bias, rounded once; on Apple's GPUs the product may be rounded, and then the sum."""
        product = self @ Approximate.exact(weight).T
        if bias is None:
            return product.stored()
        result = product.stored() + Approximate.exact(bias)
        # The bias may also come first: then every partial sum has it in it.
        result.error += self.value.shape[-1] * self.eps / 2 * bias.detach().cpu().double().abs()
        return result.stored()

    def as_rows(self):
        """[..., features] as a matrix."""
        rows = math.prod(self.value.shape[:-1])
        shape = (rows, self.value.shape[-1])
        return self._like(self.value.reshape(shape), self.error.reshape(shape))

    def view(self, *shape):
        return self._like(self.value.view(*shape), self.error.view(*shape))

    def sum_rows(self):
        """The sum over the rows of a matrix."""
        bound = (2 * math.sqrt(len(self.value)) + 64) * self.eps / 2
        return self._like(self.value.sum(0), self.error.sum(0) + bound * self.value.abs().sum(0))

    def activation(self, name, params=(), order=0):
        """The activation, or its derivative of some order, here."""
        params = rounded_parameters(tuple(_keywords(name, params).values()), self.dtype)
        scale = natural_scale(name, self.value, params, order)
        series = functools.partial(derivatives, name, params=params)
        # Between both ends of an interval, a sine may be anywhere.
        steepest = abs(params[0]) ** (order + 1) if name == "sin" else None
        places = jumps(name, params)
        return self._apply(series, order, scale, 4 * (order + 1), order > 1, places, steepest)

    def tail(self, name, order=0):
        """`activation` of one of WITH_TAILS where |x| is 2 or more: within a bound that is relative."""
        formula = formulas(name)[-1]
        series = functools.partial(differentiate, formula)
        return self._apply(series, order, 0, 4 * (order + 1), either_side=order > 1)

    def gradient_from_output(self, name, params=(), order=1):
        """The derivative of order `order - 1` of f'(x) as a function of f(x), which this is."""
        if name not in GRADIENT_FROM_OUTPUT:
            raise LookupError(f"add the derivative of {name} to GRADIENT_FROM_OUTPUT in tests/reference.py")
        params = rounded_parameters(tuple(_keywords(name, params).values()), self.dtype)
        series = functools.partial(derivatives_from_output, name, params=params)
        return self._apply(series, order - 1, 0, 4 * order, either_side=order > 1)

    def _apply(self, series, order, scale, roundings, either_side, places=(0.0,), steepest=None):
        x = self.value
        result, slope = series(x, count=order + 1)[order:]
        units = roundings * self.eps
        if self.dtype != compute_dtype(self.dtype):
            units += torch.finfo(self.dtype).eps / 64  # formulas that are as exact as the rounding needs
        error = units * (result.abs() + (x * slope).nan_to_num().abs() + scale)
        smallest = torch.finfo(compute_dtype(self.dtype)).smallest_normal
        error = error + torch.where((result != 0) | (self.error != 0), smallest * x.abs().clamp(min=1), 0.0)
        reach = self.error
        if either_side:
            beside = torch.finfo(x.dtype).eps * x.abs() + torch.finfo(x.dtype).smallest_normal
            reach = torch.where(x.isfinite(), reach + beside, reach)
        if steepest is not None:
            error = error + (1 + units) * (steepest * reach).nan_to_num(nan=0.0)
        elif reach.any():
            # Both ends of what x may be, and the points nearest to those where something may differ from all around it.
            points = [x + reach, x - reach, *(x - (x - place).clamp(-reach, reach) for place in places)]
            ends = torch.stack([series(point, count=order)[order] for point in points])
            error = error + (1 + roundings * self.eps) * (ends - result).nan_to_num(nan=0.0).abs().amax(0)
        return self._like(result, error)

    def stored(self):
        """Rounded to the dtype: nothing happens unless it is a 16-bit type."""
        if self.dtype == compute_dtype(self.dtype):
            return self
        info = torch.finfo(self.dtype)
        rounding = info.eps / 2 * (self.value.abs() + self.error) + info.smallest_normal * info.eps / 2
        return self._like(self.value, self.error + torch.where((self.value == 0) & (self.error == 0), 0.0, rounding))

    def assert_holds(self, actual, what=""):
        """The tensor has the value's shape and dtype, and each element is within the bound: NaN and infinities too."""
        assert actual.dtype == self.dtype, f"{what}: dtype {actual.dtype}, expected {self.dtype}"
        assert actual.shape == self.value.shape, f"{what}: shape {actual.shape}, expected {self.value.shape}"
        ok = self.holds(actual)
        if ok.all():
            return
        wrong = (~ok).nonzero()
        index = tuple(wrong[0].tolist())
        got, value, error = actual[index].item(), self.value[index].item(), self.error[index].item()
        raise AssertionError(
            f"{what}: {len(wrong)} of {actual.numel()} elements are out of bounds; the first, at {index}, is {got!r}, "
            f"expected {value!r} within {error:.3g}, but off by {abs(got - value):.3g}"
        )

    def holds(self, actual):
        """Which elements of the tensor are within the bound."""
        got = actual.detach().cpu().double()
        rounded = self.value.to(self.dtype).double()
        error = self.error.nan_to_num(nan=0.0)
        overflow = (self.value.abs() + error > torch.finfo(self.dtype).max) & got.isinf() & (got * self.value > 0)
        same = (got == rounded) | (got.isnan() & self.value.isnan())
        return same | overflow | ((got - self.value).abs() <= error)
