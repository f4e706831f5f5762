"""Arguments that differ from a good call in ways that an op must take, or refuse with an error."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import torch

from fuzz.schemas import Arguments, Draw, Schema, recipes
from fuzz.tensors import KINDS, SPOILED_KINDS, WRITABLE_KINDS, Recipe

WRONG_DTYPES = [torch.int32, torch.bool, torch.uint8, torch.complex64, torch.float8_e4m3fn]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NAMES = ["", "GELU", "gelu ", "gelu\0", "swish", "identity_", "ü", "relu" * 5000]
NUMBERS = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0]
WRONG_KINDS = [kind for kind in SPOILED_KINDS if kind != "overlapping base"]
INTEGERS = [0, -1, 4, 2**31, 2**62, -(2**63)]


def written(schema: Schema) -> list[str]:
    """The arguments that the op writes to."""
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def replaced(value: Any, old: Recipe, new: Any) -> Any:
    """Arguments with another recipe for one."""
    if value is old:
        return new
    if isinstance(value, dict):
        return {name: replaced(item, old, new) for name, item in value.items()}
    return [replaced(item, old, new) for item in value] if isinstance(value, list) else value


# Where they are differentiated, what the forward pass has kept is computed again: the arguments that are drawn for it
# are something else.
COMPUTED_AGAIN = {"fastops::mlp_jet_backward", "fastops::sequential_backward"}


def dress(arguments: Arguments, schema: Schema, rng: random.Random) -> Arguments:
    """The same call with tensors of every kind that is as good."""
    values = rng.choice(["small", "small", "normal", "special"])
    plain = rng.random() < 0.15
    # These two do not go together, nor does the latter with arguments that are written to.
    without = "of inference" if rng.random() < 0.5 and not written(schema) else "with gradient"
    if schema.name in COMPUTED_AGAIN:
        without = "with gradient"
    for name in list(arguments):
        for recipe in recipes({name: arguments[name]}):
            kinds = WRITABLE_KINDS if name in written(schema) else KINDS
            others = [kind for kind in kinds if kind != without]
            kind = "contiguous" if plain or rng.random() < 0.4 else rng.choice(others)
            arguments = replaced(arguments, recipe, dataclasses.replace(recipe, kind=kind, values=values))
    return arguments


# ---- what is wrong with a call; each function gives None where it does not apply ----

Spoiler = Callable[[Arguments, Schema, random.Random], Arguments | None]


def one_tensor(change: Callable[[Recipe, random.Random], Recipe]) -> Spoiler:
    """Changes one of the tensors."""

    def spoil(arguments: Arguments, _: Schema, rng: random.Random) -> Arguments | None:
        found = recipes(arguments)
        if not found:
            return None
        chosen = rng.choice(found)
        return replaced(arguments, chosen, change(chosen, rng))

    return spoil


def one_argument(applies: Callable[[Any], bool], change: Callable[[Any, random.Random], Any]) -> Spoiler:
    """Changes one argument that is not a tensor."""

    def spoil(arguments: Arguments, _: Schema, rng: random.Random) -> Arguments | None:
        names = [name for name, value in arguments.items() if applies(value)]
        return {**arguments, (name := rng.choice(names)): change(arguments[name], rng)} if names else None

    return spoil


def is_numbers(value: Any) -> bool:
    """A list of floating-point numbers, perhaps an empty one; but no other list."""
    return isinstance(value, list) and all(isinstance(item, float) for item in value)


def other_numbers(value: list[float], rng: random.Random) -> list[float]:
    """As many, more or fewer."""
    count = max(0, len(value) + rng.choice([0, 0, 0, 1, -1, 2]))
    return [rng.choice(NUMBERS) for _ in range(count)]


def other_length(value: list[Any], rng: random.Random) -> list[Any]:
    """One more or less, or none."""
    return rng.choice([value[:-1], value + value[-1:], []])


def share(arguments: Arguments, schema: Schema, rng: random.Random) -> Arguments | None:
    """One tensor in place of two."""
    found = recipes(arguments)
    if len(found) < 2:
        return None
    one, other = rng.sample(found, 2)
    return replaced(replaced(arguments, one, other), other, writable(other) if written(schema) else other)


def overlap(arguments: Arguments, schema: Schema, rng: random.Random) -> Arguments | None:
    """What is written to lies in the memory of another argument."""
    targets = [arguments[name] for name in written(schema)]
    others = [recipe for recipe in recipes(arguments) if all(recipe is not target for target in targets)]
    if not targets or not others or not isinstance(targets[0], Recipe):
        return None
    base = writable(chosen := rng.choice(others))
    place = dataclasses.replace(base, kind="overlapping base", base=base)
    return replaced(replaced(arguments, chosen, base), targets[0], place)


def writable(recipe: Recipe) -> Recipe:
    """A recipe like this one of a tensor that no kernel sees a copy of."""
    return dataclasses.replace(recipe, kind="stepped" if recipe.seed % 2 else "contiguous")


def expand(arguments: Arguments, schema: Schema, rng: random.Random) -> Arguments | None:
    """What is written to has several elements in one place."""
    targets = [arguments[name] for name in written(schema)]
    if not targets or not isinstance(targets[0], Recipe):
        return None
    return replaced(arguments, targets[0], dataclasses.replace(targets[0], kind="expanded"))


SPOILERS: dict[str, Spoiler] = {
    "dtype": one_tensor(lambda r, rng: dataclasses.replace(r, dtype=rng.choice(WRONG_DTYPES), kind="contiguous")),
    "other dtype": one_tensor(lambda r, rng: dataclasses.replace(r, dtype=rng.choice(DTYPES))),
    "shape": one_tensor(lambda r, rng: dataclasses.replace(r, size=Draw(rng).shape(), kind="contiguous")),
    "one dimension": one_tensor(lambda r, rng: dataclasses.replace(r, size=(*r.size, 1), kind="contiguous")),
    "kind of tensor": one_tensor(
        lambda r, rng: dataclasses.replace(
            r, kind=rng.choice([kind for kind in SPOILED_KINDS if kind != "overlapping base"])
        )
    ),
    "freed": one_tensor(lambda r, rng: dataclasses.replace(r, kind=rng.choice(["freed", "shortened"]))),
    "shared": share,
    "overlap": overlap,
    "expanded": expand,
    "name": one_argument(lambda v: isinstance(v, str), lambda v, rng: rng.choice(NAMES)),
    "number": one_argument(lambda v: isinstance(v, float), lambda v, rng: rng.choice(NUMBERS)),
    "numbers": one_argument(is_numbers, other_numbers),
    "integer": one_argument(lambda v: type(v) is int, lambda v, rng: rng.choice(INTEGERS)),
    "length": one_argument(lambda v: isinstance(v, list) and bool(v), other_length),
}


def spoil(arguments: Arguments, schema: Schema, rng: random.Random) -> tuple[str, Arguments]:
    """Something wrong with the call, and what."""
    while True:
        name = rng.choice(list(SPOILERS))
        spoiled = SPOILERS[name](arguments, schema, rng)
        if spoiled is not None:
            return name, spoiled
