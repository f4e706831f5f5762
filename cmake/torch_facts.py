"""Prints what CMake needs to know of torch: version, C++11 ABI, debug build, GPUs that it was built for, folder.

Of the one in the folder that is given, which needs version.py and include/ alone, else of the one that is imported.
"""

from __future__ import annotations

import os
import runpy
import sys

if len(sys.argv) > 1:
    folder = sys.argv[1]
    version = runpy.run_path(os.path.join(folder, "version.py"))
    abi = True  # the wheels of every torch that fastops works with
else:
    import torch

    folder = os.path.dirname(torch.__file__)
    version = vars(torch.version)
    abi = torch.compiled_with_cxx11_abi()
gpu = "hip" if version["hip"] else "cuda" if version["cuda"] else "none"
print(version["__version__"], int(abi), version["debug"], gpu, folder.replace(os.sep, "/"), sep=";", end="")
