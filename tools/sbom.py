"""What is compiled into a wheel beside fastops, as a CycloneDX document: PEP 770's .dist-info/sboms/fastops.cdx.json.

There are no libraries of others inside: torch's own, OpenMP's and the compiler's are those of the machine. Compiled in
are parts of headers: torch's, for each release with a library, and pybind11's, of which torch brings a copy.
tests/test_wheel.py looks whether the compiler has read others.
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

BSD = "BSD-3-Clause"  # fastops, torch and pybind11


def document(wheel: Path, time: str) -> str:
    """The document for an unpacked wheel; its time as SOURCE_DATE_EPOCH has it."""
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    fields = message_from_bytes(metadata.read_bytes())
    ours = component(fields["Name"], fields["Version"])
    builds = [runpy.run_path(str(file)) for file in sorted(wheel.glob("fastops/torch-*/_build.py"))]
    headers = [component("torch", build["torch_version"]) for build in builds]
    headers += [component("pybind11", version) for version in sorted({build["pybind11_version"] for build in builds})]

    bom = Bom(components=headers)
    bom.metadata.component = ours
    bom.metadata.tools = ToolRepository(components=[compiler(name) for name in {build["compiler"] for build in builds}])
    bom.metadata.timestamp = datetime.fromtimestamp(int(time), timezone.utc)
    content = " ".join(str(one.purl) for one in (ours, *headers))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{content} {bom.metadata.timestamp.isoformat()}")
    bom.register_dependency(ours, headers)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def component(name: str, version: str) -> Component:
    """A distribution of PyPI; what comes after a + in its version is torch's build, such as cpu."""
    url = PackageURL("pypi", name=name, version=version)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED,
        purl=url,
        bom_ref=str(url),
        licenses=[DisjunctiveLicense(id=BSD)],
    )


def compiler(name: str) -> Component:
    """Of which name is what CMake calls it, with its version: "GNU 12.2.0"."""
    kind, _, version = name.partition(" ")
    return Component(name=kind, version=version, type=ComponentType.APPLICATION, bom_ref=name)
