// The definition of every activation: its value and its gradient, as templates over a number type.
//
// One text serves every backend: the CPU kernels instantiate it with a SIMD vector, GPU kernels with `float`, the
// composite path with `at::Tensor`, and derivatives of higher order with `Jet` (jet.h). README.md says what a number
// type must offer. The language is C++14 without the standard library, so that every GPU compiler takes it.
//
// `value(x, p)` is f(x). `gradient(g, x, p)` is g * f'(x): a function of both, so that an activation whose derivative
// is a mask selects `g` rather than multiplying it, and an infinite `g` stays out of the masked places. Where f'(x)
// can be had from y = f(x), `gradient_from_output(g, y, p)` gives it, and the backward pass keeps y instead of x.
//
// Formulas are those of PyTorch's documentation (torch.nn.functional, torch.nn) unless a comment says otherwise; NaN,
// infinities and signed zeros come out as there. Where PyTorch's vector and scalar code disagree on a NaN, its vector
// code is followed, which computes all but a tensor's last few elements on a CPU.
#pragma once

#include "activations/base.h"
#include "activations/piecewise.h"
#include "activations/smooth.h"
