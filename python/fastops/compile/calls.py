"""What the nodes of a captured graph call: one name for each function, however it was called."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import fx

from .._resolve import PARAMETERS
from .._torch_internal import HigherOrderOperator, OpOverload, OpOverloadPacket

ELEMENTWISE = set(
    "abs add clamp div erf exp expm1 ge gt le log log1p lt maximum minimum mul neg pow reciprocal rsqrt rsub sign sqrt "
    "square sub where".split()
)
# Those that give a new tensor: nobody else can see it yet.
FRESH = {*ELEMENTWISE, *PARAMETERS, "addmm", "linear", "matmul"}
_OTHERS = set("addmm chunk dropout getitem glu linear matmul permute reshape split t to transpose view".split())
_SYNONYMS = {
    "absolute": "abs",
    "clip": "clamp",
    "divide": "div",
    "float": "to",
    "greater": "gt",
    "less": "lt",
    "mm": "matmul",
    "multiply": "mul",
    "negative": "neg",
    "special_expm1": "expm1",
    "special_erf": "erf",
    "special_log1p": "log1p",
    "subtract": "sub",
    "true_divide": "div",
    "truediv": "div",
    "type_as": "to",
}
_NAMES = {name: name for name in (*ELEMENTWISE, *_OTHERS, *PARAMETERS)} | _SYNONYMS
_MODULES: tuple[Any, ...] = (operator, torch, F, torch.special, torch.ops.aten, torch.ops.fastops)


# What these take after the tensor and before `inplace`.
_PARAMETERS: dict[str, Iterable[str]] = {**PARAMETERS, "dropout": ("p", "training")}
# Functions of PyTorch that may write to tensors that they are given, besides those whose names say so.
_WRITE_STATE = ("batch_norm", "instance_norm")
_WRITE_IF_MAX_NORM = ("embedding", "embedding_bag")


class Call(NamedTuple):
    """A function by the name that it has here, and what it is called with."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    in_place: bool


def _functions() -> dict[Any, tuple[str, bool]]:
    """For every function that is known: its name, and whether it works in place."""
    found: dict[Any, tuple[str, bool]] = {getattr: ("getattr", False)}
    for spelling, name in _NAMES.items():
        for module in _MODULES:
            in_place = f"i{spelling}" if module is operator else f"{spelling}_"
            for attribute in (spelling, in_place):
                function = getattr(module, attribute, None)
                if callable(function):
                    found[function] = name, attribute == in_place
                if isinstance(function, OpOverloadPacket):
                    overloads = [getattr(function, overload) for overload in function.overloads()]
                    found |= {overload: found[function] for overload in overloads if not _has_out(overload)}
    return found


def _has_out(overload: OpOverload) -> bool:
    return any(argument.is_out for argument in overload._schema.arguments)


_FUNCTIONS = _functions()


def call_of(node: fx.Node) -> Call | None:
    """What a node calls; None for what is not known here."""
    name, in_place = None, False
    if node.op == "call_method" and isinstance(node.target, str):
        in_place = _is_in_place(node.target)
        name = _NAMES.get(node.target.removesuffix("_") if in_place else node.target)
    elif node.op == "call_function":
        name, in_place = _FUNCTIONS.get(node.target, (None, False))
    if name is None or not node.args or "out" in node.kwargs:
        return None
    arguments, keywords = node.args, dict(node.kwargs)
    if name in _PARAMETERS:
        names = _parameters(name, node.target)
        if len(arguments) > 1 + len(names):
            return None
        keywords |= zip(names, arguments[1:], strict=False)
        arguments = arguments[:1]
    return Call(name, arguments, keywords, keywords.pop("inplace", False) is not False or in_place)


def is_off(dropout: Call) -> bool:
    """Whether a call of dropout gives the tensor that it is given."""
    keywords = dict(dropout.keywords)
    p, training = keywords.pop("p", 0.5), keywords.pop("training", True)
    return not keywords and (training is False or (isinstance(p, float) and p == 0.0))


def _parameters(name: str, target: Any) -> list[str]:
    """What a function takes by position after the tensor: ``aten.elu`` more than ``elu``."""
    overload = getattr(target, "default", None) if isinstance(target, OpOverloadPacket) else target
    if not isinstance(overload, OpOverload):
        return [*_PARAMETERS[name], "inplace"]
    names = [argument.name for argument in overload._schema.arguments[1:] if not argument.kwarg_only]
    return ["training" if name == "train" else name for name in names]


def written(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node may write to; in doubt, all that it is given."""
    call = call_of(node)
    if call is not None:
        return node.all_input_nodes[:1] if call.in_place else []
    if node.op == "call_method":
        name = str(node.target)
        return node.all_input_nodes if _is_in_place(name) or name == "__setitem__" else []
    if node.op != "call_function":
        return []
    target: Any = node.target
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        packet = target.overloadpacket if isinstance(target, OpOverload) else target
        overloads = [getattr(packet, name) for name in packet.overloads()]
        return node.all_input_nodes if any(overload._schema.is_mutable for overload in overloads) else []
    module, name = getattr(target, "__module__", None) or "", getattr(target, "__name__", "")
    has_max_norm = (len(node.args) > 3 and node.args[3] is not None) or node.kwargs.get("max_norm") is not None
    if name in _WRITE_STATE or (name in _WRITE_IF_MAX_NORM and has_max_norm):
        return [argument for argument in node.all_input_nodes if argument.op in ("placeholder", "get_attr")]
    is_known = module.split(".")[0] in ("torch", "_operator", "builtins", "math")
    is_in_place = _is_in_place(name) or name in _IN_PLACE_OPERATORS or "out" in node.kwargs or _has_inplace_on(node)
    is_known = is_known and not isinstance(target, HigherOrderOperator)
    return node.all_input_nodes if is_in_place or not is_known else []


_IN_PLACE_OPERATORS = set(
    "delitem iadd iand ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor setitem".split()
)


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and name not in ("and_", "is_", "not_", "or_")  # of operator


def _has_inplace_on(node: fx.Node) -> bool:
    if not inspect.isfunction(node.target):
        return bool(node.kwargs.get("inplace", False))
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    except TypeError:
        return True
    return bool(bound.arguments.get("inplace", False))
