"""The one form of every error of the API, and which status goes with what went wrong."""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from handrail.core.log import log
from handrail.core.text import compact_json, encodable
from handrail.errors import ApprovalError, ConfigError, HandrailError, ProviderError, StoreError, ToolError
from handrail.serve.tenant_pools import TenantUnusableError

STORE_AWAY: Final = (
    "The database does not answer. Whether the request was recorded is not known: look, and send it again."
)
_MAX_CHARS: Final = 2_000
_MAX_FIELDS: Final = 20


class FieldProblem(BaseModel):
    """What is wrong with one part of a request."""

    field: str = Field(description="Where it is: `body.turn`, `query.limit`.")
    message: str


class Problem(BaseModel):
    """What went wrong with a request."""

    code: str = Field(description="A code of the library, such as `permission_denied`, or `not_found`.")
    message: str = Field(description="What was wrong, and what would be right.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str = Field(description="The `X-Request-ID` of the request.")
    fields: list[FieldProblem] = Field(default=[], description="For `invalid_arguments`: each part that is wrong.")


class ErrorBody(BaseModel):
    """The body of every response with a status of 400 or more."""

    error: Problem


class ApiError(Exception):
    """Ends a request with a status and an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        fields: Sequence[tuple[str, str]] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retryable = retryable
        self.fields = fields
        self.headers = headers or {}


def not_found(what: str, *, note: str = "") -> ApiError:
    """The error for something that is not there, or that is another tenant's: nobody can tell the two apart."""
    return ApiError(404, "not_found", f"There is no such {what}.{note}")


def render_problem(error: ApiError, request_id: str) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The body and the headers of a response that says what went wrong."""
    fields = [{"field": encodable(field)[:200], "message": encodable(text)[:500]} for field, text in error.fields]
    problem = {
        "code": error.code,
        "message": encodable(error.message)[:_MAX_CHARS],
        "retryable": error.retryable,
        "request_id": request_id,
        "fields": fields[:_MAX_FIELDS],
    }
    body = compact_json({"error": problem}).encode()
    headers = {"content-type": "application/json", **error.headers}
    return body, [(name.encode(), value.encode()) for name, value in headers.items()]


def to_api_error(error: Exception) -> ApiError:
    """What a caller is told about an error of the library."""
    match error:
        case ApiError():
            return error
        case ToolError():
            return ApiError(422, error.code, error.message, retryable=error.retryable)
        case ApprovalError():
            return ApiError(409, error.code, error.message)
        case TenantUnusableError():
            return ApiError(503, "unavailable", error.message, retryable=True, headers={"retry-after": "5"})
        case StoreError():
            return ApiError(503, "unavailable", STORE_AWAY, retryable=True, headers={"retry-after": "5"})
        case ConfigError():
            return ApiError(422, error.code, error.message)
        case ProviderError():
            return ApiError(502, error.code, error.message, retryable=error.retryable)
        case _:
            return ApiError(500, "internal_error", "The server failed. It is logged under the id of this request.")


def add_error_handlers(api: FastAPI) -> None:
    """Answer every error of a request in the one form."""

    async def answer(request: Request, error: Exception) -> Response:
        return respond_problem(request, to_api_error(error))

    async def answer_store_error(request: Request, error: Exception) -> Response:
        log.error("a request cannot be answered", exc_info=error)
        return respond_problem(request, to_api_error(error))

    async def answer_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = [(".".join(map(str, problem["loc"])), str(problem["msg"])) for problem in error.errors()]
        listed = "; ".join(f"{field}: {text}" for field, text in fields[:3])
        return respond_problem(
            request, ApiError(422, "invalid_arguments", f"The request is not valid. {listed}", fields=fields)
        )

    async def answer_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code, text = _HTTP_CODES.get(error.status_code, ("invalid_arguments", "The body cannot be read as JSON."))
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        return respond_problem(request, ApiError(error.status_code, code, text, headers=headers))

    api.add_exception_handler(ApiError, answer)
    api.add_exception_handler(HandrailError, answer)
    api.add_exception_handler(StoreError, answer_store_error)
    api.add_exception_handler(RequestValidationError, answer_invalid)
    api.add_exception_handler(HTTPException, answer_http)
    api.add_exception_handler(Exception, answer)


_HTTP_CODES: Final = {
    404: ("not_found", "There is no such route."),
    405: ("method_not_allowed", "This route does not take this method; the header Allow names those that it takes."),
}


def respond_problem(request: Request, error: ApiError) -> Response:
    """The response of an error."""
    body, headers = render_problem(error, get_request_id(request))
    return Response(
        body,
        status_code=error.status,
        headers={name.decode(): value.decode() for name, value in headers},
    )


def get_request_id(request: Request) -> str:
    """The id of a request: the client's, if it sent one that can be used, else a new one."""
    return request.scope["state"]["request_id"]


def describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for its documentation."""
    return {status: {"model": ErrorBody, "description": _DESCRIPTIONS[status]} for status in statuses}


_DESCRIPTIONS: Final = {
    400: "The body cannot be read as JSON.",
    401: "A key is missing, or is not valid any more (`permission_denied`).",
    403: "The key has another role, or is another tenant's (`permission_denied`).",
    404: "There is nothing of this name, or it is another tenant's (`not_found`).",
    405: "The route does not take this method (`method_not_allowed`).",
    408: "The body did not arrive in time (`invalid_arguments`).",
    409: "It was decided already, runs, or changed meanwhile (`approval_error`, `in_progress`, `store_error`).",
    413: "The body is too long (`invalid_arguments`).",
    422: "A value is missing or wrong (`invalid_arguments`, `config_error`).",
    429: "Too many requests with this key (`rate_limited`); `Retry-After` says when.",
    502: "The model's provider failed; the code says how (`unavailable`, `rate_limit`, `refusal`).",
    503: "The database does not answer, a tenant cannot be used, or the request took too long (`unavailable`).",
}
EVERY_ROUTE: Final = (401, 403, 408, 413, 422, 429, 503)
"""The statuses that every route with a key may have."""
