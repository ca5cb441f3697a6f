"""A phone agent for two lamp shops: it knows where an order is, cancels it if the caller agrees, and transfers calls.

handrail phone simulate                                    # both calls of this example, also in a copy of this folder
handrail phone simulate calls/transfer.yaml --verbose      # one of them, with every event
"""

from handrail import Rule, ToolError, tool
from handrail.tenants import BuiltTool, NoTool, Section, TenantConfig, ToolBuilder


class OrdersFeature(Section):
    """The section `orders` of a tenant's `features`."""

    enabled: bool = False
    can_cancel: bool = False


def build_order_status(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The tool that looks an order up, for tenants with orders."""
    if not cfg.features.orders.enabled:
        return NoTool("orders are not enabled")

    @tool(read_only=True)
    async def order_status(order_id: str) -> str:
        """Say where an order is."""
        return _find(cfg, order_id)

    return BuiltTool(tool=order_status, prompt="Ask for the order number before you look an order up.")


def build_cancel_order(cfg: TenantConfig) -> BuiltTool | NoTool:
    """The tool that cancels an order. It has consequences: the caller is asked first, by code and not by a prompt."""
    if not cfg.features.orders.can_cancel:
        return NoTool("orders cannot be cancelled by phone")

    @tool
    async def cancel_order(order_id: str) -> str:
        """Cancel an order."""
        _find(cfg, order_id)
        ORDERS[cfg.tenant_id][order_id] = "cancelled"
        return f"The order {order_id} is cancelled."

    return BuiltTool(tool=cancel_order, rules=(Rule.ask("cancel_order", by="customer", source=cfg.source),))


ORDERS = {
    "north-lamps": {"A-17": "packed", "A-18": "on its way"},
    "atelier-lumiere": {"B-4": "en route"},
}


def _find(cfg: TenantConfig, order_id: str) -> str:
    try:
        return ORDERS[cfg.tenant_id][order_id]
    except KeyError as error:
        raise ToolError(f"There is no order {order_id}.", code="unknown_order") from error


TOOLS = ToolBuilder()
TOOLS.register(build_order_status, feature=("orders", OrdersFeature))
TOOLS.register(build_cancel_order)
