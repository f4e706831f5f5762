"""What is compiled into a wheel beside fastops, as a CycloneDX document: PEP 770's .dist-info/sboms/fastops.cdx.json.

Torch's libraries, OpenMP's and the compiler's are those of the machine. Compiled in are parts of headers: torch's, for
each release with a library, and pybind11's, of which torch brings a copy; tests/test_wheel.py looks for others among
what the compiler has read. Libraries of GPU kernels have what GPU names, of a version that they do not tell.
"""

from __future__ import annotations

import runpy
import uuid
from datetime import datetime, timezone
from email import message_from_bytes
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

BSD = DisjunctiveLicense(id="BSD-3-Clause")  # fastops, torch and pybind11
GPU = {
    "libfastops_cuda.so": {"cuda-cudart": DisjunctiveLicense(name="NVIDIA CUDA Toolkit EULA")},
    "libfastops_hip.so": {"hip": DisjunctiveLicense(id="MIT"), "rocm-device-libs": DisjunctiveLicense(id="NCSA")},
}


def document(wheel: Path, time: str) -> str:
    """The document for an unpacked wheel; its time as SOURCE_DATE_EPOCH has it."""
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    fields = message_from_bytes(metadata.read_bytes())
    ours = component(fields["Name"], fields["Version"])
    builds = [runpy.run_path(str(file)) for file in sorted(wheel.glob("fastops/torch-*/_build.py"))]
    headers = [component("torch", build["torch_version"]) for build in builds]
    headers += [component("pybind11", version) for version in sorted({build["pybind11_version"] for build in builds})]
    of_gpus = [GPU[file.name] for file in sorted(wheel.glob("fastops/libfastops_*.so")) if file.name in GPU]
    inside = headers + [component(name, None, terms) for parts in of_gpus for name, terms in parts.items()]

    bom = Bom(components=inside)
    bom.metadata.component = ours
    bom.metadata.tools = ToolRepository(components=[compiler(name) for name in {build["compiler"] for build in builds}])
    bom.metadata.timestamp = datetime.fromtimestamp(int(time), timezone.utc)
    content = " ".join(str(one.purl) for one in (ours, *inside))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{content} {bom.metadata.timestamp.isoformat()}")
    bom.register_dependency(ours, inside)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def component(name: str, version: str | None, terms: DisjunctiveLicense = BSD) -> Component:
    """A distribution of PyPI, where there is a version; what comes after a + in it is torch's build, such as cpu."""
    url = PackageURL("pypi" if version else "generic", name=name, version=version)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED,
        purl=url,
        bom_ref=str(url),
        licenses=[terms],
    )


def compiler(name: str) -> Component:
    """Of which name is what CMake calls it, with its version: "GNU 12.2.0"."""
    kind, _, version = name.partition(" ")
    return Component(name=kind, version=version, type=ComponentType.APPLICATION, bom_ref=name)
