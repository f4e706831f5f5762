// Every activation, one line each: X(name, struct, parameters, constraint, formula).
//
// name        as in torch.ops.fastops and fastops.functional (PyTorch's function, where it has one)
// struct      in activations.h; also the class in fastops.nn (PyTorch's module, where it has one)
// parameters  in the syntax of an operator schema, with PyTorch's names and defaults
// constraint  what the struct's valid() requires, for the error message; "" where anything goes
// formula     for the documentation
//
// Schemas, kernels of every backend, derivatives, the Python functions and modules, and the tests follow from this
// table.
#pragma once

// clang-format off
#define FASTOPS_ACTIVATIONS(X) \
  X(identity, Identity, "", "", "x") \
  X(relu, ReLU, "", "", "max(x, 0)") \
  X(relu6, ReLU6, "", "", "min(max(x, 0), 6)") \
  X(leaky_relu, LeakyReLU, "float negative_slope=0.01", "", "x if x > 0 else negative_slope * x") \
  X(elu, ELU, "float alpha=1.0", "", "x if x > 0 else alpha * (exp(x) - 1)") \
  X(selu, SELU, "", "", "1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * (exp(x) - 1))") \
  X(gelu, GELU, "", "", "x * Phi(x), Phi the distribution function of the standard normal distribution") \
  X(gelu_tanh, GELUTanh, "", "", "x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))") \
  X(quick_gelu, QuickGELU, "", "", "x * sigmoid(1.702 * x)") \
  X(silu, SiLU, "", "", "x * sigmoid(x)") \
  X(mish, Mish, "", "", "x * tanh(log(1 + exp(x)))") \
  X(softplus, Softplus, "float beta=1.0, float threshold=20.0", "", "log(1 + exp(beta * x)) / beta if beta * x <= threshold else x") \
  X(sigmoid, Sigmoid, "", "", "1 / (1 + exp(-x))") \
  X(tanh, Tanh, "", "", "tanh(x)") \
  X(softshrink, Softshrink, "float lambd=0.5", "lambd >= 0", "x - lambd if x > lambd, x + lambd if x < -lambd, else 0") \
  X(hardshrink, Hardshrink, "float lambd=0.5", "", "x if abs(x) > lambd else 0") \
  X(tanhshrink, Tanhshrink, "", "", "x - tanh(x)") \
  X(hardtanh, Hardtanh, "float min_val=-1.0, float max_val=1.0", "min_val <= max_val", "min(max(x, min_val), max_val)") \
  X(hardswish, Hardswish, "", "", "x * min(max(x + 3, 0), 6) / 6") \
  X(hardsigmoid, Hardsigmoid, "", "", "min(max(x + 3, 0), 6) / 6") \
  X(relu_squared, ReLUSquared, "", "", "max(x, 0)^2") \
  X(sin, Sin, "float omega=1.0", "", "sin(omega * x)")
// clang-format on

namespace fastops {

// One enumerator for each activation, in the table's order.
#define FASTOPS_ENUMERATOR(name, ...) name,
enum class Activation : int { FASTOPS_ACTIVATIONS(FASTOPS_ENUMERATOR) };
#undef FASTOPS_ENUMERATOR

#define FASTOPS_COUNT(...) +1
enum : int { activation_count = FASTOPS_ACTIVATIONS(FASTOPS_COUNT) };
#undef FASTOPS_COUNT

}  // namespace fastops
