"""A PyTorch device in host memory, ``hostmem``: what a device outside PyTorch has to bring, one part in each file.

``import torch`` loads it. ``docs/backend.md`` of fastops walks through it.
"""


def autoload() -> None:
    """Called by ``import torch``, through the entry point ``torch.backends``; importing this package does the rest.

    It stands before anything else because a program may import this package first: the ``import torch`` below then
    calls it while the package is half imported.
    """


import torch  # noqa: E402

torch.utils.rename_privateuse1_backend("hostmem")

from . import _C, device_module  # noqa: E402, F401  (_C registers the device's ops)

torch._register_device_module("hostmem", device_module)
torch.utils.generate_methods_for_privateuse1_backend(
    for_tensor=True, for_module=True, for_storage=True, for_packed_sequence=True
)

from . import distributed  # noqa: E402, F401  (registers the process group)
