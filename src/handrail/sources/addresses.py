"""Which addresses a server that somebody else has named may have: none of this machine, its network and its cloud."""

import asyncio
import ipaddress
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

_METADATA: Final = frozenset(
    ipaddress.ip_address(item) for item in ("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254")
)
"""Where clouds tell a machine its credentials, beside the link-local addresses; never asked, whatever is allowed."""
_EMBEDS_IPV4: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_LOCAL_NAT64: Final = _EMBEDS_IPV4[1]
"""Translated inside this network, which also says which of the bits are the IPv4 address."""

_RESOLVERS: Final = ThreadPoolExecutor(max_workers=128, thread_name_prefix="handrail-dns")
"""A name server that does not answer holds up these threads, and none in which something else is done."""
_Found = list[tuple[Any, ...]]
_asking: Final[dict[tuple[str, int], "Future[_Found]"]] = {}
"""Names that are being looked up: of all who wait for one, it takes a single thread, also when they have given up."""

NetworkAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class RequestNotSentError(Exception):
    """Nothing was sent: the server cannot have done anything. The text is the reason."""


class AddressRefusedError(RequestNotSentError):
    """The address is one that must not be asked."""


def find_address_problem(text: str, *, allow_private: bool) -> str | None:
    """Why an address must not be asked, or None."""
    written = ipaddress.ip_address(text.partition("%")[0])
    address = _unwrap_ipv4(written)
    if address.is_link_local or address in _METADATA:
        return f"{address} is an address of this machine's cloud, which is never asked"
    if address.is_multicast or address.is_unspecified or (address.is_reserved and not address.is_loopback):
        return f"{address} is not the address of a server"
    is_site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local  # Counts as global.
    is_local = is_site_local or (written.version == 6 and written in _LOCAL_NAT64)
    if not allow_private and (is_local or not address.is_global):
        return f"{address} is in a private network; allow_private=True allows that"
    return None


def _unwrap_ipv4(address: NetworkAddress) -> NetworkAddress:
    """An IPv4 address that is written inside an IPv6 one, as itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inner is None and any(address in network for network in _EMBEDS_IPV4):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address


def _ask(host: str, port: int) -> "Future[_Found]":
    place = host, port
    asking = _asking.get(place)
    if asking is None:
        asking = _asking[place] = _RESOLVERS.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        asking.add_done_callback(lambda _: _asking.pop(place, None))
    return asking


async def resolve_host(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host. All of them must be allowed: what is checked here is what is connected to."""
    try:
        found = await asyncio.shield(asyncio.wrap_future(_ask(host, port)))
    except (OSError, UnicodeError) as error:
        raise RequestNotSentError(f"{host} has no address") from error
    addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
    for address in addresses:
        if problem := find_address_problem(address, allow_private=allow_private):
            raise AddressRefusedError(f"{host} is refused: {problem}")
    if not addresses:
        raise RequestNotSentError(f"{host} has no address")
    return addresses
