"""OpenAPI documents as tools."""

from handrail.sources.openapi.pagination import Pagination
from handrail.sources.openapi.source import OpenApi

__all__ = ["OpenApi", "Pagination"]
