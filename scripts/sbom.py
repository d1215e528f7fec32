"""The software bill of materials (SBOM) of the image, as a CycloneDX 1.6 document in JSON.

``python -m scripts.sbom``          prints the document
``python -m scripts.sbom FILE``     writes it to a file

Versions and hashes are those of ``requirements-image.lock`` and ``requirements-amqp.lock``, the
packages of the project and the base image those of ``packaging/Dockerfile``. Licenses and
requirements of other projects come from the metadata of the installed packages; a package that is
not installed in the locked version has neither, and a line on standard error names it.

The same inputs make the same bytes: the document has no time, and its serial number follows from
its content.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.packages import ROOT, projects

LOCKS: Final = ("requirements-image.lock", "requirements-amqp.lock")
"""Lock files of the packages in the image."""
DOCKERFILE: Final = ROOT / "packaging" / "Dockerfile"
NAMESPACE: Final = uuid.UUID("2f1d6c0e-6f0b-5d0a-9a51-6d7a3a0f5b1e")
"""Namespace of the serial numbers."""
ROOT_REFERENCE: Final = "penstock-image"
_LICENSE_LENGTH_MAX: Final = 80
"""Longer license fields have the text of a license instead of its name."""
_NOT_A_NAME: Final = frozenset(("", "UNKNOWN", "OSI Approved"))

_ENTRY: Final = re.compile(
    r"^(?P<requirement>[\w.-]+==[^\\\n]+)(?P<hashes>(?:\\\n +--hash=sha256:[0-9a-f]{64} ?)*)", re.M
)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_FROM: Final = re.compile(
    r"^FROM (?P<name>[\w./-]+):(?P<tag>(?P<python>[\d.]+)\S*)@sha256:(?P<digest>[0-9a-f]{64})", re.M
)
_OWN: Final = re.compile(r"(?<= )packages/(\w+)")

Document = dict[str, Any]


class Locked(Struct, frozen=True):
    """A package of a lock file."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file of this version on the index."""

    @property
    def url(self) -> str:
        """The package URL, which is also its reference in the document."""
        return f"pkg:pypi/{self.name}@{self.version}"


class BaseImage(Struct, frozen=True):
    """The image that the Dockerfile begins with."""

    name: str
    tag: str
    python: str
    """Version of Python in the image."""
    digest: str

    @property
    def url(self) -> str:
        query = f"repository_url=docker.io/library/{self.name}&tag={self.tag}"
        return f"pkg:oci/{self.name}@sha256%3A{self.digest}?{query}"


def base_image() -> BaseImage:
    """Return the base image. Raises ``LookupError`` if the Dockerfile has none with a digest."""
    match = _FROM.search(DOCKERFILE.read_text(encoding="utf-8"))
    if match is None:
        raise LookupError(f"{DOCKERFILE} has no line FROM NAME:TAG@sha256:DIGEST")
    return BaseImage(**match.groupdict())


def environment(python: str) -> Mapping[str, str]:
    """Return the values of markers in the image. They do not depend on the machine that makes the
    document."""
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
    }


def locked_packages(markers: Mapping[str, str]) -> Mapping[str, Locked]:
    """Return the packages that the lock files install in the image, by name."""
    packages: dict[str, Locked] = {}
    for lock in LOCKS:
        for match in _ENTRY.finditer((ROOT / lock).read_text(encoding="utf-8")):
            requirement = Requirement(match["requirement"].strip())
            if requirement.marker is not None and not requirement.marker.evaluate(dict(markers)):
                continue
            name = canonicalize_name(requirement.name)
            version = str(requirement.specifier).removeprefix("==")
            packages[name] = Locked(name, version, tuple(_HASH.findall(match["hashes"])))
    return dict(sorted(packages.items()))


def own_packages() -> Mapping[str, Mapping[str, Any]]:
    """Return the packages of the project in the image: the table `project` of each, by name."""
    folders = set(_OWN.findall(DOCKERFILE.read_text(encoding="utf-8")))
    names = {f"penstock-{folder}" for folder in folders}
    return {name: project for name, project in sorted(projects().items()) if name in names}


def metadata_of(package: Locked) -> importlib.metadata.PackageMetadata | None:
    """Return the metadata of a package; None if this version is not installed."""
    try:
        metadata = importlib.metadata.metadata(package.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return metadata if metadata["Version"] == package.version else None


def licenses_of(metadata: importlib.metadata.PackageMetadata) -> list[Document]:
    """Return the licenses that the metadata declares: its SPDX expression, else the classifiers,
    else the name in the old field; empty if it has none of them."""
    (expression,) = metadata.get_all("License-Expression") or [""]
    if expression:
        return [{"acknowledgement": "declared", "expression": expression}]
    classifiers = metadata.get_all("Classifier") or []
    names = {
        line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")
    } - _NOT_A_NAME
    (text,) = metadata.get_all("License") or [""]
    if not names and len(text) <= _LICENSE_LENGTH_MAX:
        names = {" ".join(text.split())} - _NOT_A_NAME
    return [{"license": {"acknowledgement": "declared", "name": name}} for name in sorted(names)]


def document() -> Document:
    """Return the bill of materials of the image, as the document to encode."""
    base = base_image()
    markers = environment(base.python)
    locked, workspace = locked_packages(markers), own_packages()
    references = {name: package.url for name, package in locked.items()}
    references |= {
        name: f"pkg:pypi/{name}@{project['version']}" for name, project in workspace.items()
    }
    version = workspace["penstock-realm"]["version"]
    components = [
        _base_component(base),
        *(_own_component(project, references[name]) for name, project in workspace.items()),
        *map(_component, locked.values()),
    ]
    content: Document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "components": sorted(components, key=lambda component: component["bom-ref"]),
        # The base image is one component: its own packages are listed by its publisher.
        "compositions": [{"aggregate": "incomplete", "assemblies": [base.url]}],
        "dependencies": [
            {
                "dependsOn": sorted([base.url, *map(references.__getitem__, workspace)]),
                "ref": ROOT_REFERENCE,
            },
            *_dependencies(locked, workspace, references=references, markers=markers),
        ],
        "metadata": {
            "component": {
                "bom-ref": ROOT_REFERENCE,
                "licenses": [{"expression": workspace["penstock-realm"]["license"]}],
                "name": "penstock",
                "type": "container",
                "version": version,
            },
            "lifecycles": [{"phase": "build"}],
        },
        "specVersion": "1.6",
        "version": 1,
    }
    serial = uuid.uuid5(NAMESPACE, json.dumps(content, sort_keys=True))
    return {**content, "serialNumber": serial.urn}


def _base_component(base: BaseImage) -> Document:
    return {
        "bom-ref": base.url,
        "hashes": [{"alg": "SHA-256", "content": base.digest}],
        "name": base.name,
        "purl": base.url,
        "type": "container",
        "version": base.tag,
    }


def _own_component(project: Mapping[str, Any], url: str) -> Document:
    return {
        "bom-ref": url,
        "licenses": [{"acknowledgement": "declared", "expression": project["license"]}],
        "name": project["name"],
        "purl": url,
        "type": "library",
        "version": project["version"],
    }


def _component(package: Locked) -> Document:
    """Return the component of a package. Its hashes belong to a reference to its distribution,
    because each is that of one of several files, of which a machine installs one."""
    hashes = [{"alg": "SHA-256", "content": content} for content in package.hashes]
    component: Document = {
        "bom-ref": package.url,
        "externalReferences": [{"hashes": hashes, "type": "distribution", "url": package.url}],
        "name": package.name,
        "purl": package.url,
        "type": "library",
        "version": package.version,
    }
    metadata = metadata_of(package)
    if metadata is not None and (licenses := licenses_of(metadata)):
        component["licenses"] = licenses
    return component


def _dependencies(
    locked: Mapping[str, Locked],
    own: Mapping[str, Mapping[str, Any]],
    *,
    references: Mapping[str, str],
    markers: Mapping[str, str],
) -> Iterator[Document]:
    """Yield the requirements of each package whose requirements are known."""
    required = {name: _requirements_of(project) for name, project in own.items()}
    extras: dict[str, set[str]] = {}
    for requirement in (
        requirement for requirements in required.values() for requirement in requirements
    ):
        extras.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
    for name, package in locked.items():
        if (metadata := metadata_of(package)) is not None:
            texts = metadata.get_all("Requires-Dist") or []
            required[name] = [
                requirement
                for requirement in map(Requirement, texts)
                if _applies(requirement, markers, extras.get(name, set()))
            ]
    for name, requirements in sorted(required.items()):
        names = {canonicalize_name(requirement.name) for requirement in requirements}
        urls = sorted(references[name] for name in names if name in references)
        yield {"dependsOn": urls, "ref": references[name]}


def _requirements_of(project: Mapping[str, Any]) -> list[Requirement]:
    """Return the requirements of a package of the project, with those of its extras: the image may
    have them."""
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]


def _applies(requirement: Requirement, markers: Mapping[str, str], extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(
        marker.evaluate({**markers, "extra": extra}) for extra in ("", *extras)
    )


def encoded(content: Document) -> bytes:
    """Return the document as bytes, which depend on its content only."""
    return json.dumps(content, indent=2, sort_keys=True).encode() + b"\n"


def main(arguments: Sequence[str]) -> None:
    """Print the document, or write it to the file that the arguments name."""
    for package in locked_packages(environment(base_image().python)).values():
        if metadata_of(package) is None:
            print(
                f"sbom: {package.name} {package.version} is not installed: its license and its "
                "requirements are left out",
                file=sys.stderr,
            )
    content = encoded(document())
    if arguments:
        Path(arguments[0]).write_bytes(content)
    else:
        sys.stdout.buffer.write(content)


if __name__ == "__main__":
    main(sys.argv[1:])
