"""A good call of any op, found from its schema alone: an error names the argument to draw again."""

from __future__ import annotations

import collections
import random
import re
from collections.abc import Callable
from typing import Any

import torch

from fuzz.tensors import Recipe
from reference import ACTIVATIONS

Schema = torch._C.FunctionSchema
Arguments = dict[str, Any]  # by name; a Recipe for each tensor

SCHEMAS = sorted(
    (schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("fastops::")),
    key=lambda schema: (schema.name, schema.overload_name),
)

FEATURES = [0, 1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 64, 70]
ROWS = [0, 1, 2, 3, 4, 9, 32, 65]
# Rarely: more than one thread's share, more than is kept in caches; and sizes that only an empty tensor has.
MANY_ROWS = [300, 2049, 5000]
EMPTY_BUT_HUGE = [2**36, 2**40]
PARAMETERS = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 20.0, 0.0, -0.5, -1.0]

# Of sequential. (Dropout wants a tensor of integers, which no other op has.)
STEPS = [
    *ACTIVATIONS,
    *("linear gelu", "layer_norm tanh linear", "rms_norm", "scale silu", "residual linear mish add", "residual add"),
    *("gated_linear silu", "linear residual layer_norm sigmoid add"),
]

TRIES = 1500
PATIENCE = 150  # tries with one argument
START_OVER = 20


def overload(schema: Schema) -> torch._ops.OpOverload:
    """The op of a schema."""
    return getattr(getattr(torch.ops.fastops, schema.name[len("fastops::") :]), schema.overload_name or "default")


class Draw:
    """Draws arguments by their types; the sizes of all tensors of a call are made of the same few numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        leading = [[], [self.rows()], [self.rows(), rng.choice([1, 2, 3])]]
        self.leading = tuple(rng.choice(leading))
        self.features = rng.sample(FEATURES, 3)
        if rng.random() < 0.04:
            self.features[0] = 0
            self.leading = (rng.choice(EMPTY_BUT_HUGE), *self.leading[1:])
        self.others: list[tuple[int, ...]] = []  # the shapes of the call's tensors
        self.dtype = rng.choice([torch.float32, torch.float64, torch.bfloat16, torch.float16])

    def rows(self) -> int:
        """A number of rows."""
        return self.rng.choice(MANY_ROWS if self.rng.random() < 0.03 else ROWS)

    def shape(self) -> tuple[int, ...]:
        """A shape of these sizes, often like that of another tensor of the call with another last size."""
        rng = self.rng
        if self.others and rng.random() < 0.9:
            like = rng.choice(self.others)
            sizes = [*like, *rng.choice(self.others), rng.choice(self.features)]
            a, b = rng.choice(sizes), rng.choice(sizes)
            return rng.choice([(*like[:-1], a), (*like[:-1], a), like, (a, b), (a, b), (a,), (*like[:-1], a // 2)])
        a, b = rng.choices(self.features, k=2)
        return rng.choice([(*self.leading, a), (*self.leading, a), (a,), (a, b), (*self.leading, 2 * a), ()])

    def tensor(self) -> Recipe:
        """A plain tensor."""
        return Recipe(self.shape(), self.dtype, seed=self.rng.randrange(2**32))

    def argument(self, kind: str, length: int | None = None) -> Any:
        """A value of a schema's type; lists of a fixed length have that."""
        rng = self.rng
        if kind.startswith("Optional["):
            return None if rng.random() < (0.03 if self.others else 0.3) else self.argument(kind[len("Optional[") : -1])
        if kind.startswith("List["):
            if length is None:
                length = rng.choice([0, 0, 0, 1, 2] if "float" in kind else [1, 1, 2, 2, 3, 3, 0, 5, 7])
            return [self.argument(kind[len("List[") : -1]) for _ in range(length)]
        simple: dict[str, Callable[[], Any]] = {
            "Tensor": self.tensor,
            "str": lambda: rng.choice(list(ACTIVATIONS)),
            "steps": lambda: rng.choice(STEPS),
            "float": lambda: rng.choice(PARAMETERS),
            "int": lambda: rng.choice([0, 1, 2, 3]),
            "bool": lambda: rng.random() < 0.5,
        }
        return simple[kind]()


def good_call(schema: Schema, rng: random.Random) -> Arguments:
    """Arguments that the op's Meta kernel takes."""
    for _ in range(START_OVER):
        if arguments := attempt(schema, rng):
            return arguments
    raise AssertionError(f"no good call of {schema} found: do its errors name the arguments?")


def attempt(schema: Schema, rng: random.Random) -> Arguments | None:
    """The same, if some tries find any."""
    draw = Draw(rng)
    kinds = {argument.name: (str(argument.type), argument.N) for argument in schema.arguments}
    arguments = {name: draw.argument(*kind) for name, kind in kinds.items()}
    if "steps" in kinds:
        kinds["steps"] = ("steps", None)
        arguments["steps"] = draw.argument("steps")
    for argument in schema.arguments:
        if argument.has_default_value() and rng.random() < 0.3:
            arguments[argument.name] = argument.default_value
    tries: collections.Counter[str] = collections.Counter()
    for _ in range(TRIES):
        error = refusal(schema, arguments)
        if error is None:
            return arguments
        name, index = to_draw_again(error, arguments, rng)
        tries[name] += 1
        if tries[name] % PATIENCE == 0:  # no value does, as the others are
            name, index = rng.choice(list(arguments)), None
        draw.others = [recipe.size for recipe in recipes(arguments)]
        if index is None:
            arguments[name] = draw.argument(*kinds[name])
        else:
            arguments[name][index] = draw.argument(re.sub(r"^List\[(.*)]$", r"\1", kinds[name][0]))
    return None


def refusal(schema: Schema, arguments: Arguments) -> str | None:
    """What the Meta kernel has against the arguments."""
    try:
        overload(schema)(**each_tensor(Recipe.meta, arguments))
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    return None


def to_draw_again(message: str, arguments: Arguments, rng: random.Random) -> tuple[str, int | None]:
    """The argument that an error names first, and the index in it; any that is not a tensor if it names none."""
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", message.partition(": ")[2]):
        if name == "input" and "self" in arguments:  # as Python calls it
            return "self", None
        if name in arguments:
            return name, int(index) if index and isinstance(arguments[name], list) else None
    others = [name for name, value in arguments.items() if isinstance(value, str | float | int | list)]
    return rng.choice(others or list(arguments)), None


def each_tensor(function: Callable[[Recipe], Any], value: Any) -> Any:
    """Arguments with something else in place of each recipe."""
    if isinstance(value, Recipe):
        return function(value)
    if isinstance(value, dict):
        return {name: each_tensor(function, item) for name, item in value.items()}
    return [each_tensor(function, item) for item in value] if isinstance(value, list) else value


def recipes(arguments: Arguments) -> list[Recipe]:
    """All recipes in the arguments."""
    found: list[Recipe] = []
    each_tensor(found.append, arguments)
    return found
