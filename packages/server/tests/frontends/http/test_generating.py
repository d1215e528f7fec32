"""Clients can be generated of the API's document: it says things in the words generators know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest

from penstock_core.api.durables import CreateDurable, DurableInfo
from penstock_core.vocabulary.definitions import Definition
from penstock_server.frontends.http.generating import (
    plain_name,
    readable,
    with_required,
    without_unused,
)
from penstock_server.frontends.http.openapi import document
from penstock_server.frontends.http.routes import TABLE
from penstock_server.frontends.http.shapes import DefinitionAnswer, DurableAnswer, NewDurable

DOCUMENT = document(TABLE, "0")
OPERATIONS = {
    f"{method.upper()} {path.removeprefix('/api/v1/')}": operation["operationId"]
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
NAMES = """
browseDurable browseEvents cancelChannelScheduledEvent cancelQueueScheduledEvent changeMyPassword
checkSelector createChannel createDurable createGroup createJoin createQueue createUser
deleteChannel deleteDurable deleteGroup deleteJoin deleteQueue deleteUser editChannel editGroup
editQueue editRealm endConnection exportChannel exportQueue getChannel getChannelEvent
getChannelStorage getDurable getHistory getKeyState getMe getOpenApi getPipeline getQueue
getQueueEvent getQueueStorage getRealm grantRights importStore listChannelColumns
listChannelMissingIds listChannels listConnections listDurables listGroups listJoins listNames
listPipelines listQueueColumns listQueueMissingIds listQueues listRights listScheduledEvents
listUsers login logout maintainChannel maintainQueue peekEvents popEvents publishEvents purgeChannel
purgeDurable purgeQueue pushEvents readAuditLog redriveDeadEvents revokeRights setUserPassword
summarizeChannelDeadEvents summarizeQueueDeadEvents unbindDurable watchChannel watchQueue watchRates
"""
"""Programs are written with them: one may be added, none may change."""


def schemas(tree: Any) -> Iterator[dict[str, Any]]:
    """Everything in the document that might be a schema."""
    if isinstance(tree, list):
        for schema in tree:
            yield from schemas(schema)
    elif isinstance(tree, dict):
        yield tree
        for schema in tree.values():
            yield from schemas(schema)


def test_operations_have_the_names_they_always_had() -> None:
    assert set(NAMES.split()) - set(OPERATIONS.values()) == set()
    assert OPERATIONS["GET channels/{channel}"] == "getChannel"
    assert OPERATIONS["POST channels/{channel}/events"] == "publishEvents"
    assert OPERATIONS["GET channels/{channel}/events"] == "browseEvents"
    assert OPERATIONS["POST channels/{channel}/durables"] == "createDurable"
    assert OPERATIONS["POST queues/{queue}/pop"] == "popEvents"


def test_each_operation_has_a_name_in_camel_case_of_its_own() -> None:
    names = list(OPERATIONS.values())

    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names)
    assert len({name.lower() for name in names}) == len(names)


def test_each_schema_is_one_that_generators_know() -> None:
    for schema in schemas(DOCUMENT):
        assert schema.get("items") is not False, schema
        assert "prefixItems" not in schema
        assert "allOf" not in schema
        assert "oneOf" not in schema
        assert "const" not in schema
        for option in schema.get("anyOf", ()):
            assert option.keys() in ({"$ref"}, {"type"}), schema
        if isinstance(schema.get("enum"), list):
            assert {*schema["enum"]} - {None}
            assert all(isinstance(value, str | None) for value in schema["enum"])
            assert "string" in schema["type"]


def test_each_reference_leads_somewhere_and_nothing_is_there_for_nothing() -> None:
    components = DOCUMENT["components"]["schemas"]
    referred = {
        schema["$ref"].rpartition("/")[2]
        for schema in schemas(DOCUMENT)
        if isinstance(schema.get("$ref"), str)
    }

    assert referred == components.keys()
    assert all(re.fullmatch(r"([A-Z][a-z]+)+", name) for name in components)
    assert all(schema["title"] == name for name, schema in components.items())


def test_times_have_their_format() -> None:
    realm = DOCUMENT["components"]["schemas"]["RealmAnswer"]["properties"]

    assert realm["started"] == {"type": "string", "format": "date-time"}


def test_a_value_or_none_is_a_list_of_types() -> None:
    numbers = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None}

    assert readable(numbers) == {"type": ["integer", "null"], "minimum": 0, "default": None}
    words = {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}
    assert readable(words) == {"type": ["string", "null"], "enum": ["a", "b", None]}


def test_a_tuple_is_a_list_of_a_length() -> None:
    [schema], _ = msgspec.json.schema_components([tuple[int, int]])

    assert readable(schema) == {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 2,
        "maxItems": 2,
    }


@pytest.mark.parametrize(
    "kind",
    [tuple[int, str], Annotated[int, msgspec.Meta(ge=0)] | str],
    ids=["tuple", "bounds"],
)
def test_schemas_that_generators_do_not_support_are_refused(kind: Any) -> None:
    [schema], _ = msgspec.json.schema_components([kind])

    with pytest.raises(ValueError, match="generators do not support"):
        readable(schema)


def test_generic_types_have_names_of_words() -> None:
    assert plain_name("Page_JoinAnswer_") == "JoinAnswerPage"
    assert plain_name("JoinAnswer") == "JoinAnswer"
    assert readable({"$ref": "#/components/schemas/Page_A_"}) == {
        "$ref": "#/components/schemas/APage"
    }


def test_only_referenced_schemas_are_kept() -> None:
    kept = {"A": {"items": {"$ref": "#/components/schemas/B"}}, "B": {}, "C": {}}

    assert list(without_unused([{"$ref": "#/components/schemas/A"}], kept)) == ["A", "B"]


def test_http_attributes_follow_the_structs_of_the_api() -> None:
    made, documented = {*CreateDurable.__struct_fields__}, {*Definition.__struct_fields__}

    assert {*NewDurable.__struct_fields__} == made - {"channel", "kind"} | {"type"}
    assert {*DurableAnswer.__struct_fields__} == {*DurableInfo.__struct_fields__}
    assert {*DefinitionAnswer.__struct_fields__} == documented - {"descriptors"} | {"message_types"}


def test_an_answer_of_the_api_always_has_all_of_its_fields() -> None:
    drawn = {"properties": {"a": {"type": "string", "default": ""}}, "required": []}

    assert with_required("Maintained", drawn) == {
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
    }
    assert with_required("NewEvent", drawn) is drawn
