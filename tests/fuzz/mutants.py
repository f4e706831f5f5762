"""The library broken on purpose, to see that the families notice it: ``python -m fuzz.mutants`` in the folder of tests.

A mutant replaces a kernel of one op at one dispatch key. It must be noticed by one of the first cases that meet the op.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fuzz import arguments, cases, transforms
from samples import activation

ops = torch.ops.fastops

CASES = 150  # that meet the op


@dataclasses.dataclass(frozen=True)
class Mutant:
    """What is broken, and how."""

    op: str
    key: str
    family: ModuleType  # that must notice it
    kernel: Callable[..., Any]


def composite(op: str, *values: Any, **keywords: Any) -> Any:
    """What the op gives without kernels of its own."""
    name, _, overload = op.partition(".")
    return getattr(getattr(ops, name), overload or "default").redispatch(arguments.COMPOSITE, *values, **keywords)


def off_by_a_percent(*values: Any) -> Tensor:
    """A wrong value."""
    return composite("bias_act", *values) * 1.01


def one_element_off(*values: Any) -> list[Tensor]:
    """A wrong value at the end of one result."""
    results = composite("gated_mlp_backward", *values)
    if results and results[-1].numel():
        results[-1].view(-1)[-1] *= 1.01
    return results


def other_error(*values: Any) -> Tensor:
    """A TypeError that has become a ValueError."""
    try:
        return composite("gated_act", *values)
    except TypeError as error:
        raise ValueError(str(error)) from None


def other_strides(*values: Any) -> Tensor:
    """A result that is contiguous, whatever the argument is."""
    return composite("gelu", *values).contiguous()


def written_beside(self: Tensor) -> Tensor:
    """An element too many is written."""
    self.copy_(composite("silu", self))
    if self.numel() and self.is_contiguous():
        self.as_strided((1,), (1,), self.storage_offset() + self.numel()).fill_(0)
    return self


def weights_of_one_sample(info: Any, in_dims: Sequence[int | None], *values: Any) -> tuple[Tensor, int]:
    """A vmap rule that takes the first of several weights for all of them."""

    def sample(i: int) -> list[Any]:
        places = enumerate(zip(values, in_dims, strict=True))
        return [v if dim is None else v.select(dim, 0 if place == 1 else i) for place, (v, dim) in places]

    return torch.stack([ops.linear_act(*sample(i)) for i in range(info.batch_size)]), 0


def tangent_forgotten(gate: Tensor, up: Tensor, name: str, params: Sequence[float] = ()) -> Tensor:
    """Forward mode through one argument alone."""
    return activation(name, params)(gate) * forward_ad.unpack_dual(up).primal


def write_forgotten(
    self: Tensor, bias: Tensor | None, name: str, params: Sequence[float] = (), *, out: Tensor
) -> Tensor:
    """Functionalization that does not see what was written to the base of an argument."""
    inside = lambda t: torch._from_functional_tensor(t) if t is not None and torch._is_functional_tensor(t) else t  # noqa: E731
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)):
        result = ops.bias_act(inside(self), inside(bias), name, params)
    torch._functionalize_replace(out, result)
    torch._functionalize_commit_update(out)
    torch._functionalize_sync(out)
    return out


MUTANTS = {
    "value": Mutant("bias_act", "CPU", arguments, off_by_a_percent),
    "one element": Mutant("gated_mlp_backward", "CPU", arguments, one_element_off),
    "error": Mutant("gated_act", "CPU", arguments, other_error),
    "strides": Mutant("gelu", "CPU", arguments, other_strides),
    "memory": Mutant("silu_", "CPU", arguments, written_beside),
    "vmap": Mutant("linear_act", "FuncTorchBatched", transforms, weights_of_one_sample),
    "jvp": Mutant("act_mul", "Autograd", transforms, tangent_forgotten),
    "functionalize": Mutant("bias_act.out", "Functionalize", transforms, write_forgotten),
}


@contextlib.contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """The library with this mutant."""
    with torch.library._scoped_library("fastops", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if mutant.key == "FuncTorchBatched":
            torch.library.register_vmap(f"fastops::{mutant.op}", mutant.kernel, lib=library)
        else:
            library.impl(mutant.op, mutant.kernel, mutant.key, allow_override=True)
        yield


def meets(mutant: Mutant, seed: int) -> bool:
    """Whether a case calls the op, and takes no time to compile."""
    if mutant.family is arguments:
        schema = arguments.drawn(random.Random(seed))
        return f"{schema.name}.{schema.overload_name}".strip(".") == f"fastops::{mutant.op}"
    samples, transform = transforms.pair(seed)
    return any(sample.op == mutant.op for sample in samples) and transform not in transforms.COMPILED


def failure(mutant: Mutant, seed: int) -> str:
    """What a case has to say."""
    try:
        cases.run(mutant.family, seed)
    except Exception as error:
        return str(error).partition("\n")[0]
    return ""


def main() -> int:
    """Tries all mutants: each is noticed, by a case that passes without it."""
    cases.report(lambda _: None)
    unnoticed = 0
    for name, mutant in MUTANTS.items():
        seeds = list(itertools.islice((seed for seed in itertools.count() if meets(mutant, seed)), CASES))
        with broken(mutant):
            seed, text = next(((seed, text) for seed in seeds if (text := failure(mutant, seed))), (None, ""))
        if seed is None:
            print(f"{name}: not noticed by {CASES} cases of {mutant.op}")
        elif failure(mutant, seed):
            print(f"{name}: seed {seed} fails without it, too: {text}")
        else:
            print(f"{name}: noticed by case {seeds.index(seed) + 1} of {mutant.op}, seed {seed}: {text}")
            continue
        unnoticed += 1
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
