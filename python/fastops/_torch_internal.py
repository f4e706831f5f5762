"""What fastops takes of PyTorch's internals: no other module of ours imports or looks up a private name of torch.

Every name has its line in :data:`NAMES`: where PyTorch keeps it, what needs it here, and what happens where it is
missing. All are in torch 2.11 to 2.15. A name is looked up when it is first imported from here, so that importing
fastops loads neither Dynamo, Inductor nor DTensor. Where torch does not have it, either the plain way is taken, with
one warning; or whoever wants it gets a :class:`MissingError` that says what needs it. ``make lint`` sees to it that
nobody goes around this module (``tools/check_torch_internals.py``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ._warn import warn

if TYPE_CHECKING:  # as types; everything else is Any
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch.distributed.tensor._dtensor_spec import DTensorSpec as DTensorSpec
    from torch.distributed.tensor._op_schema import OpSchema as OpSchema
    from torch.distributed.tensor._op_schema import OpStrategy as OpStrategy
    from torch.utils._pytree import TreeSpec as TreeSpec


class MissingError(RuntimeError):
    """This torch lacks something private that a feature of fastops is made with."""


class Private(NamedTuple):
    """A private name of PyTorch.

    Attributes:
        place: ``module:attribute``.
        use: the feature that needs it.
        plain: what that does without; empty: it is an error.
        stand_in: takes its place then.
    """

    place: str
    use: str
    plain: str = ""
    stand_in: Any = None


class _Absent:
    """A class that nothing is of."""


def _yes() -> bool:
    return True


# What says that a tensor or a module is more than it seems; without it, all are taken for that.
_CALLED = "modules are called one by one, which is slower"
_REFUSED = "PyTorch refuses them"
_UNFUSED = "functions are called as they are, which is slower"
# Features.
_PLAIN = "modules as one op"
_CHECKPOINT = "modules with checkpoint=True under torch.func"
_FUSE = "fastops.fuse"
_COMPILE = "torch.compile with backend='fastops'"
_REST = "what backend='fastops' leaves to Inductor"
_EXPLAIN = "fastops.compile.explain"
_INFO = "fastops.info"
_DECOMPOSITIONS = "fastops.decompositions"
_DTENSOR = "ops on DTensors"
_CACHE = "caching compiled graphs"
_BENCH = "fastops.bench"
_GPU = "kernels for GPUs that are loaded once torch uses one"

_HOOKS = "torch.nn.modules.module:_global"
_SCHEMA = "torch.distributed.tensor._op_schema"
_TREE = "torch.utils._pytree"

NAMES: dict[str, Private] = {
    # Whether anybody would miss being called when an op takes the place of modules.
    "has_any_global_hook": Private("torch.nn.modules.module:_has_any_global_hook", _PLAIN, _CALLED, _yes),
    "global_forward_hooks": Private(f"{_HOOKS}_forward_hooks", _PLAIN, _CALLED),
    "global_forward_pre_hooks": Private(f"{_HOOKS}_forward_pre_hooks", _PLAIN, _CALLED),
    "global_backward_hooks": Private(f"{_HOOKS}_backward_hooks", _PLAIN, _CALLED),
    "global_backward_pre_hooks": Private(f"{_HOOKS}_backward_pre_hooks", _PLAIN, _CALLED),
    "module_call": Private("torch.nn.modules.module:Module._call_impl", _PLAIN, _CALLED),
    "is_function_mode_enabled": Private("torch.overrides:_is_torch_function_mode_enabled", _PLAIN, _CALLED, _yes),
    # Whether a forward pass can be computed again, as torch.func's grad does not allow.
    "are_hooks_enabled": Private("torch._C._autograd:_saved_tensors_hooks_is_enabled", _CHECKPOINT, _REFUSED, _yes),
    # What stands for a plain tensor while a program is captured.
    "FakeTensor": Private("torch._subclasses.fake_tensor:FakeTensor", _PLAIN, _CALLED, _Absent),
    "FunctionalTensor": Private("torch._subclasses.functional_tensor:FunctionalTensor", _PLAIN, _CALLED, _Absent),
    # Whether a transform, forward-mode differentiation or autocast goes on.
    "peek_interpreter_stack": Private("torch._C._functorch:peek_interpreter_stack", _FUSE, _UNFUSED, _yes),
    "is_any_autocast_enabled": Private("torch._C:_is_any_autocast_enabled", _FUSE, _UNFUSED, _yes),
    "forward_ad_level": Private("torch.autograd.forward_ad:_current_level", _FUSE, _UNFUSED),
    # Functions of the user's own, as kernels: Dynamo captures them, Inductor makes kernels without AOTAutograd.
    "BackendCompilerFailed": Private("torch._dynamo.exc:BackendCompilerFailed", _FUSE),
    "FailOnRecompileLimitHit": Private("torch._dynamo.exc:FailOnRecompileLimitHit", _FUSE),
    "TorchRuntimeError": Private("torch._dynamo.exc:TorchRuntimeError", _FUSE),
    "Unsupported": Private("torch._dynamo.exc:Unsupported", _FUSE),
    "UserError": Private("torch._dynamo.exc:UserError", _FUSE),
    "compile_lock": Private("torch._dynamo.convert_frame:compile_lock", _FUSE),
    "dynamo_config": Private("torch._dynamo:config", _FUSE),  # numbers are constants of the kernel
    "compile_fx_inner": Private("torch._inductor.compile_fx:compile_fx_inner", _FUSE),
    "select_decomp_table": Private("torch._inductor.decomposition:select_decomp_table", _FUSE),
    "TreeSpec": Private(f"{_TREE}:TreeSpec", _FUSE),
    "tree_flatten": Private(f"{_TREE}:tree_flatten", _FUSE),
    "tree_unflatten": Private(f"{_TREE}:tree_unflatten", _FUSE),
    "tree_map": Private(f"{_TREE}:tree_map", _FUSE),
    # The backend of torch.compile: the rest of a graph is for Inductor or another backend.
    "register_backend": Private("torch._dynamo.backends.registry:register_backend", _COMPILE),
    "known_backends": Private("torch._dynamo.backends.registry:_BACKENDS", _COMPILE),
    "lookup_backend": Private("torch._dynamo.backends.registry:lookup_backend", _COMPILE),
    "list_mode_options": Private("torch._inductor:list_mode_options", _REST),
    "compile_fx": Private("torch._inductor.compile_fx:compile_fx", _REST),
    "HigherOrderOperator": Private("torch._ops:HigherOrderOperator", _COMPILE),
    "dispatch_key_for_device": Private("torch._C:_dispatch_key_for_device", _COMPILE),
    "counters": Private("torch._dynamo.utils:counters", _EXPLAIN),
    "aot_module_simplified": Private("torch._functorch.aot_autograd:aot_module_simplified", _EXPLAIN),
    "partition": Private("torch._functorch.partitioners:min_cut_rematerialization_partition", _EXPLAIN),
    # What the keys of the caches on disk are made from; without it they would not know of another build of fastops.
    "FxGraphHashDetails": Private("torch._inductor.codecache:FxGraphHashDetails", _CACHE),
    # What the dispatcher knows of the ops.
    "op_names": Private("torch._C:_dispatch_get_all_op_names", f"{_INFO} and {_DECOMPOSITIONS}"),
    "has_kernel": Private("torch._C:_dispatch_has_kernel_for_dispatch_key", f"{_INFO} and {_COMPILE}"),
    "privateuse1_name": Private("torch._C:_get_privateuse1_backend_name", _INFO),
    "DispatchKey": Private("torch._C:DispatchKey", _DECOMPOSITIONS),
    "parse_dispatch_key": Private("torch._C:_dispatch_key_parse", _DECOMPOSITIONS),
    # Sharding rules for several results, which torch.distributed.tensor.experimental.register_sharding has not.
    "op_dispatcher": Private("torch.distributed.tensor:DTensor._op_dispatcher", _DTENSOR),
    "DTensorSpec": Private("torch.distributed.tensor._dtensor_spec:DTensorSpec", _DTENSOR),
    "TensorMeta": Private("torch.distributed.tensor._dtensor_spec:TensorMeta", _DTENSOR),
    "OpSchema": Private(f"{_SCHEMA}:OpSchema", _DTENSOR),
    "OpSpec": Private(f"{_SCHEMA}:OpSpec", _DTENSOR),
    "OpStrategy": Private(f"{_SCHEMA}:OpStrategy", _DTENSOR),
    "RuntimeSchemaInfo": Private(f"{_SCHEMA}:RuntimeSchemaInfo", _DTENSOR),
    "TupleStrategy": Private(f"{_SCHEMA}:TupleStrategy", _DTENSOR),
    "expand_strategy": Private("torch.distributed.tensor._ops.utils:expand_to_full_mesh_op_strategy", _DTENSOR),
    "detect_fake_mode": Private("torch._guards:detect_fake_mode", _DTENSOR),
    "FakeTensorMode": Private("torch._subclasses:FakeTensorMode", _DTENSOR),
    "tree_leaves": Private(f"{_TREE}:tree_leaves", _DTENSOR),
    "tree_map_only": Private(f"{_TREE}:tree_map_only", _DTENSOR),
    # What torch runs when it begins to use a GPU.
    "call_with_first_gpu": Private("torch.cuda:_lazy_call", _GPU),
    # The benchmark's peers and roofs.
    "inductor_config": Private("torch._inductor:config", f"{_BENCH} with zentorch"),
    "has_amx": Private("torch.cpu:_is_amx_tile_supported", _BENCH, "products of bfloat16 have no roof", _yes),
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = _find(*NAMES[name])
    return found


def _find(place: str, use: str, plain: str, stand_in: Any) -> Any:
    module, _, path = place.partition(":")
    try:
        found = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        missing = f"torch {torch.__version__} has no {module}.{path}"
        if not plain:
            raise MissingError(f"fastops: {missing}, needed for {use}") from error
        warn(f"fastops: {missing}: {plain}")
        return stand_in
    return found


if not TYPE_CHECKING:
    # Public, but for their names.
    OpOverload = type(torch.ops.aten.add.Tensor)
    OpOverloadPacket = type(torch.ops.aten.add)


def in_transform() -> bool:
    """Whether torch.func transforms what is called, or it is differentiated in forward mode; in doubt it is."""
    return _peek() is not None or getattr(_forward_ad, "_current_level", 0) >= 0


_peek = _find(*NAMES["peek_interpreter_stack"])
_find(*NAMES["forward_ad_level"])  # the number itself changes
_forward_ad = importlib.import_module("torch.autograd.forward_ad")
