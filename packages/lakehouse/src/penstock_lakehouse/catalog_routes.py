"""Routes of the Iceberg REST catalog: channels and queues as read-only tables (SEM B1-B5).

The paths and JSON bodies are those of the specification
(https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml). The namespaces
are ``channels`` and ``queues``; a table has the name of its channel or queue.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from penstock_core.api.access import IssueToken
from penstock_core.api.channels import ListChannels
from penstock_core.api.operations import READING
from penstock_core.api.realm import DescribeRealm
from penstock_core.api.requests import Kind
from penstock_core.api.tables import LoadTable
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist, PenstockError
from penstock_server.frontends.http.access import basic_credentials
from penstock_server.frontends.http.routing import Call, Route
from penstock_server.frontends.http.shapes import Answer, FormBody, NoQuery, QueryParameters

PAGE_MAX: Final = 1_000
"""Largest number of table names in one answer."""
REGION: Final = "local"
"""Region of the bucket, which clients include in their signatures. It has no other effect."""
_NAMESPACES: Final[Mapping[str, Kind]] = MappingProxyType(
    {"channels": "channel", "queues": "queue"}
)
_ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
GRANT: Final = "client_credentials"
"""The only supported grant type of OAuth 2.0."""
_OAUTH_CODES: Final[Mapping[int, str]] = MappingProxyType(
    {
        401: "invalid_client",
        403: "unauthorized_client",
        429: "temporarily_unavailable",
        500: "server_error",
        503: "temporarily_unavailable",
        504: "temporarily_unavailable",
    }
)
_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "BadRequestException",
        401: "NotAuthorizedException",
        403: "ForbiddenException",
        404: "NoSuchTableException",
        405: "UnsupportedOperationException",
        406: "UnsupportedOperationException",
        503: "ServiceUnavailableException",
    }
)


class ConfigQuery(QueryParameters, frozen=True):
    warehouse: Annotated[str, Meta(max_length=1_024)] = ""
    """Ignored, because a realm has exactly one warehouse."""


class NamespacesQuery(QueryParameters, frozen=True):
    parent: Annotated[str, Meta(max_length=1_024)] = ""
    """Name of a namespace whose children are listed; empty lists the namespaces of the catalog."""
    page_token: Annotated[str, Meta(max_length=1_024)] = field(default="", name="pageToken")
    """Ignored: all namespaces fit on one page."""
    page_size: Annotated[int, Meta(ge=1, le=1_000_000)] = field(default=PAGE_MAX, name="pageSize")
    """Ignored: all namespaces fit on one page."""


class TablesQuery(QueryParameters, frozen=True):
    page_token: Annotated[str, Meta(max_length=1_024)] = field(default="", name="pageToken")
    """Name of the last table of the previous page; empty for the first page."""
    page_size: Annotated[int, Meta(ge=1, le=1_000_000)] = field(default=PAGE_MAX, name="pageSize")


class TableQuery(QueryParameters, frozen=True):
    snapshots: Annotated[str, Meta(max_length=16)] = "all"
    """Ignored: the metadata always lists the newest snapshots that are held."""


class CatalogConfig(Answer, frozen=True):
    defaults: dict[str, str]
    overrides: dict[str, str]
    endpoints: tuple[str, ...]


class Namespaces(Answer, frozen=True):
    namespaces: list[tuple[str, ...]]


class Namespace(Answer, frozen=True):
    namespace: tuple[str, ...]
    properties: dict[str, str]


class TableName(Answer, frozen=True):
    namespace: tuple[str, ...]
    name: str


class TableNames(Answer, frozen=True):
    identifiers: list[TableName]
    next_page_token: str | None = field(default=None, name="next-page-token")


class TableAnswer(Answer, frozen=True):
    metadata_location: str = field(name="metadata-location")
    metadata: dict[str, Any]
    """Table metadata of format 2."""
    config: dict[str, str]
    """Settings for the client's S3 library: the address of the files and the key for them."""


class IcebergError(Answer, frozen=True):
    message: str
    type: str
    code: int
    """HTTP status of the answer."""


class IcebergRefusal(Answer, frozen=True):
    error: IcebergError


class TokenForm(FormBody, frozen=True, kw_only=True):
    grant_type: Annotated[str, Meta(max_length=255)] = ""
    user: Annotated[str, Meta(max_length=255)] = field(default="", name="client_id")
    password: Annotated[str, Meta(max_length=1_024)] = field(default="", name="client_secret")
    scope: Annotated[str, Meta(max_length=1_024)] = ""
    """Ignored: a token has all rights of its user in the catalog."""

    # The generated text would show the password in logs.
    def __repr__(self) -> str:
        return f"TokenForm({self.user!r})"


class TokenAnswer(Answer, frozen=True, kw_only=True):
    access_token: str
    token_type: str = "bearer"
    expires_in: int
    """Lifetime of the token, in seconds."""
    issued_token_type: str = "urn:ietf:params:oauth:token-type:access_token"

    # The generated text would show the token in logs.
    def __repr__(self) -> str:
        return f"TokenAnswer({self.expires_in})"


class TokenRefusal(Answer, frozen=True):
    error: str
    error_description: str


class UnsupportedGrantType(InvalidArgument):
    """A client requested a token with a grant type other than ``client_credentials``."""


def refusal(status: int, error: PenstockError) -> tuple[int, str, bytes]:
    """Return the status, content type and body of an error answer of the Iceberg catalog."""
    kind = _TYPES.get(status, "ServerErrorException")
    document = IcebergRefusal(error=IcebergError(message=str(error), type=kind, code=status))
    return status, "application/json", msgspec.json.encode(document)


def oauth_refusal(status: int, error: PenstockError) -> tuple[int, str, bytes]:
    """Return the status, content type and body of an error answer of OAuth 2.0 (RFC 6749, section
    5.2)."""
    code = _OAUTH_CODES.get(status, "invalid_request")
    if isinstance(error, UnsupportedGrantType):
        code = "unsupported_grant_type"
    document = TokenRefusal(error=code, error_description=str(error))
    return status, "application/json", msgspec.json.encode(document)


async def token(call: Call[NoQuery, TokenForm]) -> TokenAnswer:
    """Return a token for the Iceberg catalog in exchange for a user and a password.

    The grant of OAuth 2.0 is `client_credentials`, with the user as `client_id` and the password as
    `client_secret`, in the form or by Basic. The token is for the routes of the catalog only, has
    the user's present rights, and ends after an hour or when the password changes.
    """
    form = call.body
    if form.grant_type != GRANT:
        # An exchange would prolong a token without the password (SEM B6).
        raise UnsupportedGrantType(
            f"grant_type is {form.grant_type[:80]!r}; it must be {GRANT}: clients get a new token "
            f"with the password, so turn the exchange of tokens off"
        )
    user, password = form.user, form.password
    scheme, _, credentials = call.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        user, password = basic_credentials(credentials)
    if not user or not password:
        raise InvalidArgument("client_id or client_secret is missing: send the user and password")
    issued = await call.ask(IssueToken(user, password))
    return TokenAnswer(access_token=issued.token, expires_in=issued.lifetime_s)


async def config(call: Call[ConfigQuery, None]) -> CatalogConfig:
    """Return the settings of the Iceberg catalog.

    Clients name ``/api/v1/iceberg`` of the HTTP port as the catalog, and sign in as on all other
    routes. The catalog is read-only.
    """
    # The request only verifies that the caller may use the realm.
    await call.ask(DescribeRealm())
    return CatalogConfig(defaults={}, overrides={}, endpoints=_ENDPOINTS)


async def namespaces(call: Call[NamespacesQuery, None]) -> Namespaces:
    """List the namespaces of the Iceberg catalog: channels and queues."""
    await call.ask(DescribeRealm())
    # Namespaces are not nested, so a parent has no children.
    return Namespaces(namespaces=[] if call.query.parent else [(name,) for name in _NAMESPACES])


async def namespace(call: Call[ConfigQuery, None]) -> Namespace:
    """Show a namespace of the Iceberg catalog."""
    name = call.params["namespace"]
    await call.ask(DescribeRealm())
    if name not in _NAMESPACES:
        raise _no_namespace(name)
    return Namespace(namespace=(name,), properties={})


async def tables(call: Call[TablesQuery, None]) -> TableNames:
    """List the tables of a namespace: the channels or queues that the user may read."""
    namespace_name, query = call.params["namespace"], call.query
    kind = _NAMESPACES.get(namespace_name)
    if kind is None:
        raise _no_namespace(namespace_name)
    store_names = await call.ask(ListChannels(kind))
    # The page token is a name and not a position, so that the next page is right even if tables
    # were created or deleted since the previous one.
    readable = sorted(
        store_name
        for store_name in store_names
        if store_name > query.page_token and call.caller.allows(READING[kind], store_name)
    )
    page_size = min(query.page_size, PAGE_MAX)
    page = readable[:page_size]
    return TableNames(
        identifiers=[TableName(namespace=(namespace_name,), name=name) for name in page],
        next_page_token=page[-1] if len(readable) > page_size else None,
    )


async def table(call: Call[TableQuery, None]) -> TableAnswer:
    """Load a channel or queue as an Iceberg table.

    The answer has the metadata of a snapshot made now, and a key for its files, which are served
    at the same port.
    """
    loaded = await call.ask_here(LoadTable, lambda now: LoadTable(now.channel))
    scheme = "https" if call.service.is_secure else "http"
    return TableAnswer(
        metadata_location=loaded.metadata_location,
        metadata=loaded.metadata,
        config={
            "s3.endpoint": f"{scheme}://{call.headers.get('host', 'localhost')}",
            "s3.path-style-access": "true",
            "s3.region": REGION,
            "client.region": REGION,
            "s3.access-key-id": loaded.key,
            "s3.secret-access-key": loaded.secret,
        },
    )


def _no_namespace(name: str) -> NameDoesNotExist:
    """Return the error for a namespace that the catalog does not have."""
    return NameDoesNotExist(
        f"the catalog has no namespace {name[:80]!r}; it has {' and '.join(_NAMESPACES)}"
    )


def _route(
    name: str, path: str, endpoint: Callable[[Any], Coroutine[Any, Any, Any]], asks: Any
) -> Route:
    """Return a GET route of the catalog. ``asks`` is the type of the request that it sends to the
    realm."""
    return Route(
        name,
        "GET",
        f"iceberg/v1/{path}",
        asks=asks,
        endpoint=endpoint,
        refusal_of=refusal,
        refusal_type=IcebergRefusal,
        takes_issued_tokens=True,
    )


ROUTES: Final = (
    Route(
        "getIcebergToken",
        "POST",
        "iceberg/v1/oauth/tokens",
        asks=IssueToken,
        endpoint=token,
        refusal_of=oauth_refusal,
        refusal_type=TokenRefusal,
    ),
    _route("getIcebergConfig", "config", config, asks=DescribeRealm),
    _route("listIcebergNamespaces", "namespaces", namespaces, asks=DescribeRealm),
    _route("getIcebergNamespace", "namespaces/{namespace}", namespace, asks=DescribeRealm),
    _route("listIcebergTables", "namespaces/{namespace}/tables", tables, asks=ListChannels),
    _route("loadIcebergChannel", "namespaces/channels/tables/{channel}", table, asks=LoadTable),
    _route("loadIcebergQueue", "namespaces/queues/tables/{queue}", table, asks=LoadTable),
)
