"""``backend="fastops"`` for ``torch.compile``, also where the package's metadata, with its entry point, is missing.

Imported right after ``torch._dynamo.backends.registry``.
"""

from typing import Any

from ._torch_internal import known_backends, register_backend


def fastops(*arguments: Any, **keywords: Any) -> Any:
    """As ``fastops.compile.backend``, which takes a while to import."""
    from .compile import backend

    return backend(*arguments, **keywords)


if fastops.__name__ not in known_backends:  # by the entry point, which may be what imports fastops
    register_backend(fastops)
