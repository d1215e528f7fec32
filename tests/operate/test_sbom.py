"""The bill of materials of the image: valid, the same bytes each time, and what the locks say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from email.message import Message
from importlib.metadata import PackageMetadata
from pathlib import Path
from typing import Any, cast

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement

import penstock
from scripts import sbom

ROOT = Path(__file__).parents[2]
DOCUMENT = sbom.document()
COMPONENTS: dict[str, dict[str, Any]] = {
    component["name"]: component for component in DOCUMENT["components"]
}


def lock_lines() -> dict[str, set[str]]:
    """The hashes of each package, read line by line, without those for Windows."""
    hashes: dict[str, set[str]] = {}
    name = ""
    for lock in sbom.LOCKS:
        for line in (ROOT / lock).read_text().splitlines():
            if re.match(r"\w", line):
                requirement = Requirement(line.removesuffix("\\"))
                for_windows = str(requirement.marker) == 'sys_platform == "win32"'
                name = "" if for_windows else requirement.name
            elif "--hash=" in line and name:
                hashes.setdefault(name, set()).add(line.split("sha256:")[1][:64])
    return hashes


def test_it_is_valid_by_the_schema_of_the_format() -> None:
    text = sbom.encoded(DOCUMENT).decode()

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_the_validator_refuses_what_the_schema_does_not_allow() -> None:
    text = sbom.encoded({**DOCUMENT, "serialNumber": "7"}).decode()

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is not None


def test_it_has_each_package_of_the_locks_with_its_version_and_every_hash() -> None:
    own_names = {name for name in COMPONENTS if name.startswith("penstock-")}
    expected = lock_lines()
    hashes = {
        name: {hash_["content"] for hash_ in component["externalReferences"][0]["hashes"]}
        for name, component in COMPONENTS.items()
        if "externalReferences" in component
    }

    assert len(expected) > 30
    assert "colorama" not in COMPONENTS  # for Windows only
    assert hashes == expected
    assert set(COMPONENTS) == {*expected, *own_names, "python"}
    versions = "".join((ROOT / lock).read_text() for lock in sbom.LOCKS)
    for name in expected:
        assert f"\n{name}=={COMPONENTS[name]['version']} " in f"\n{versions}"


def test_it_has_the_packages_of_the_project_that_the_image_has() -> None:
    own_names = {name for name in COMPONENTS if name.startswith("penstock-")}

    assert own_names == {f"penstock-{path.name}" for path in (ROOT / "packages").iterdir()} - {
        "penstock-airflow",
        "penstock-celery",
        "penstock-faststream",
        "penstock-spark",
    }
    assert {COMPONENTS[name]["version"] for name in own_names} == {penstock.__version__}
    assert DOCUMENT["metadata"]["component"]["version"] == penstock.__version__


def test_it_has_the_base_image_by_its_digest() -> None:
    base = COMPONENTS["python"]

    assert f"@sha256:{base['hashes'][0]['content']}" in sbom.DOCKERFILE.read_text()
    assert base["version"].startswith("3.11.")


def test_every_package_url_can_be_read_and_names_its_component() -> None:
    for name, component in COMPONENTS.items():
        url = PackageURL.from_string(component["purl"])

        assert url.name == name
        assert url.type == ("oci" if name == "python" else "pypi")
        assert url.type == "oci" or url.version == component["version"]


def test_every_reference_leads_to_a_component() -> None:
    references = {component["bom-ref"] for component in DOCUMENT["components"]}
    tree = {dependency["ref"]: dependency["dependsOn"] for dependency in DOCUMENT["dependencies"]}

    assert len(references) == len(DOCUMENT["components"])
    assert tree.keys() <= references | {sbom.ROOT_REFERENCE}
    assert {reference for needed in tree.values() for reference in needed} <= references
    assert COMPONENTS["cffi"]["bom-ref"] in tree[COMPONENTS["cryptography"]["bom-ref"]]
    assert COMPONENTS["cryptography"]["bom-ref"] in tree[COMPONENTS["pyjwt"]["bom-ref"]]


def test_every_package_of_an_index_that_is_installed_has_its_licenses() -> None:
    installed = [
        package.name
        for package in sbom.locked_packages(sbom.environment("3.11.9")).values()
        if sbom.metadata_of(package) is not None
    ]

    assert len(installed) > 30
    assert [name for name in installed if not COMPONENTS[name].get("licenses")] == []


def metadata(**fields: str) -> PackageMetadata:
    message = Message()
    for name, value in fields.items():
        message[name.replace("_", "-")] = value
    return cast("PackageMetadata", message)


def test_an_expression_goes_before_classifiers_and_these_before_the_old_field() -> None:
    classifier = "License :: OSI Approved :: MIT License"

    (expression,) = sbom.licenses_of(
        metadata(License_Expression="MIT OR Apache-2.0", Classifier=classifier)
    )
    (named,) = sbom.licenses_of(metadata(Classifier=classifier, License="MIT"))
    (old,) = sbom.licenses_of(metadata(License="ISC License", Classifier="Topic :: Internet"))
    assert expression["expression"] == "MIT OR Apache-2.0"
    assert named["license"]["name"] == "MIT License"
    assert old["license"]["name"] == "ISC License"
    assert sbom.licenses_of(metadata(License="Permission is hereby granted " * 9)) == []
    assert sbom.licenses_of(metadata(License="UNKNOWN")) == []


def test_another_version_than_the_locked_one_tells_nothing_of_it() -> None:
    package = sbom.Locked("msgspec", "0.0.1", ())

    assert sbom.metadata_of(package) is None


@pytest.mark.slow
@pytest.mark.process
def test_the_command_writes_the_same_bytes_each_time(tmp_path: Path) -> None:
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for seed, file in enumerate(files):
        subprocess.run(
            [sys.executable, "-m", "scripts.sbom", str(file)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "TZ": f"UTC{seed}"},
            timeout=60,
            check=True,
        )

    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads(files[0].read_text()) == DOCUMENT


def test_the_image_and_the_release_have_it() -> None:
    build, image = sbom.DOCKERFILE.read_text().split("\nFROM ")[1:]

    assert "-m scripts.sbom /opt/penstock/share/penstock/sbom.cdx.json" in build
    # What it reads of is still installed then.
    assert build.index("scripts.sbom /opt") < build.index("pip uninstall")
    assert "COPY --from=build /opt/penstock /opt/penstock" in image
    assert (
        '-m scripts.sbom "$dist/penstock-image-$version.cdx.json"'
        in (ROOT / "scripts" / "wheel.sh").read_text()
    )
