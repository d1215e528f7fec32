"""Builds the API's OpenAPI 3.1 document from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin

import msgspec

from penstock_server.frontends.http.accepting import ARROW, JSON, NDJSON, STREAMED
from penstock_server.frontends.http.generating import (
    NAMES,
    NUMBERS,
    plain_name,
    readable,
    with_required,
    without_unused,
)
from penstock_server.frontends.http.routing import (
    BASE,
    TAR,
    TARS,
    Content,
    Download,
    Events,
    Payload,
    Route,
    RouteTable,
    Signature,
    Upload,
    form_of,
)
from penstock_server.frontends.http.shapes import ErrorAnswer, NewEvent, NewEvents

VERSION: Final = "3.1.0"
_NUMBERS: Final = ("event_id", "number")
_REF: Final = "#/components/schemas/{name}"
_REFUSALS: Final = {
    "400": "The request is malformed or a value is out of bounds",
    "401": "Authentication is required or has failed",
    "403": "The user lacks the right, or the request comes from a page of another site",
    "404": "The named object does not exist",
    "406": "The answer is not available in an accepted content type",
    "409": "The request conflicts with the current state",
    "413": "The request or an event is too large",
    "415": "The content type of the body is not supported",
    "422": "An event or selector is not valid",
    "429": "Too many requests",
    "500": "Internal error of the realm",
    "503": "Temporarily unavailable; try again later",
    "504": "No reply arrived in time",
    "507": "Insufficient memory or storage",
}


def document(table: RouteTable, version: str) -> dict[str, Any]:
    """Return the OpenAPI document."""
    kinds = _kinds(table)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(map(_key, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in table.routes:
        path = paths.setdefault(f"{BASE}/{route.path}", {})
        path[route.method.lower()] = _operation(
            route, table.signatures[route], schema_of, components=components
        )
    paths = readable(paths)
    named_schemas = {
        plain_name(name): {**readable(with_required(name, schema)), "title": plain_name(name)}
        for name, schema in components.items()
    }
    return {
        "openapi": VERSION,
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Penstock",
            "version": version,
            "description": "Administration of a realm. Names in paths are percent-encoded, "
            "including slashes: `channels/flights%2Fdelays`.",
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"basic": []}, {"bearer": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": without_unused(paths, named_schemas),
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "penstock_session_9080",
                    "description": "Session cookie of the console. Its name ends with the port "
                    "and, over TLS, begins with `__Host-`.",
                },
            },
        },
    }


def _key(kind: Any) -> str:
    """Return a text that identifies a type, also a generic one."""
    return str(kind)


def _kinds(table: RouteTable) -> list[Any]:
    """Return the types of queries, bodies and answers that have a schema in the document, each
    once."""
    kinds: dict[str, Any] = {_key(kind): kind for kind in (ErrorAnswer, NewEvent, NewEvents)}
    for signature in table.signatures.values():
        for kind in (signature.query, signature.body, signature.answer):
            if kind is not None and kind not in (Content, Upload, Download, Events):
                form = _json_form(kind)
                kinds.setdefault(_key(form), form)
    for kind in (route.refusal_type for route in table.routes):
        if kind is not None:
            kinds.setdefault(_key(kind), kind)
    return list(kinds.values())


def _operation(
    route: Route, signature: Signature, schema_of: Mapping[str, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the description of a route in the document."""
    tag = re.split(r"[/.]", route.path)[0]
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": signature.summary,
        "tags": [tag],
        "x-operation": route.operation,
        "parameters": [
            *_path_parameters(route),
            *_query_parameters(signature, schema_of, components),
        ],
        "responses": {
            str(route.status): {"description": "Done", "content": _answer(signature, schema_of)},
            **_refusals(schema_of[_key(route.refusal_type or ErrorAnswer)]),
        },
    }
    if signature.body is not None:
        operation["requestBody"] = {"required": True, "content": _body(signature, schema_of)}
    if route.examples is not None:
        operation["requestBody"]["content"][JSON]["example"] = route.examples.body
        answers = operation["responses"][str(route.status)]["content"]
        answers[JSON]["example"] = route.examples.answer
    if signature.description:
        operation["description"] = signature.description
    if route.is_open:
        operation["security"] = [{}]
    return operation


def _refusals(schema: Any) -> dict[str, Any]:
    """Return the responses of refused requests, by status."""
    content = {"application/json": {"schema": schema}}
    return {status: {"description": text, "content": content} for status, text in _REFUSALS.items()}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1_024,
                **(NUMBERS if name in _NUMBERS else NAMES),
            },
        }
        for name in re.findall(r"{(\w+)}", route.path)
    ]


def _query_parameters(
    signature: Signature, schema_of: Mapping[str, Any], components: Mapping[str, Any]
) -> list[dict[str, Any]]:
    reference = schema_of[_key(signature.query)]["$ref"]
    schema = components[reference.rpartition("/")[2]]
    required = schema.get("required", ())
    parameters = []
    for name, field_schema in schema["properties"].items():
        parameter_schema = _without_null(field_schema)
        text = parameter_schema.pop("description", "")
        parameter = {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": parameter_schema,
        }
        if text:
            parameter["description"] = text
        parameters.append(parameter)
    return parameters


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter without null as a value, because a parameter that is
    not set is left out of the URL."""
    result = dict(schema)
    options = [option for option in result.pop("anyOf", ()) if option.get("type") != "null"]
    # A parameter has one type besides null, so the options do not overwrite each other.
    for option in options:
        result |= option
    if result.get("default", ...) is None:
        del result["default"]
    return result


def _json_form(kind: Any) -> Any:
    """Return the type of the JSON form of an answer."""
    return get_args(kind)[0] if get_origin(kind) is Payload else kind


def _answer(signature: Signature, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of an answer, by content type."""
    if signature.answer is Events:
        return {"text/event-stream": {}}  # OpenAPI 3.1 cannot describe the events of a stream
    if signature.answer is Download:
        return {TAR: {"schema": {"type": "string", "format": "binary"}}}
    if get_origin(signature.answer) is Payload:
        return {
            JSON: {"schema": schema_of[_key(_json_form(signature.answer))]},
            **{kind: {"schema": _content_schema(kind)} for kind in (NDJSON, ARROW)},
        }
    forms = {JSON: {"schema": schema_of[_key(signature.answer)]}}
    if signature.is_streamable:
        forms |= {kind: {"schema": _content_schema(kind)} for kind in STREAMED}
    return forms


def _content_schema(kind: str) -> dict[str, Any]:
    return {"type": "string", "format": "binary"} if kind == ARROW else {"type": "string"}


def _body(signature: Signature, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a request's body, by content type."""
    if signature.body is Upload:
        return {kind: {"schema": {"type": "string", "format": "binary"}} for kind in TARS}
    if signature.body is not Content:
        return {form_of(signature.body): {"schema": schema_of[_key(signature.body)]}}
    one, many = schema_of[_key(NewEvent)], schema_of[_key(NewEvents)]
    return {
        JSON: {"schema": {"anyOf": [one, many]}},
        **{kind: {"schema": _content_schema(kind)} for kind in (NDJSON, ARROW)},
    }
