"""By which name and port other machines reach this one."""

from __future__ import annotations

import ipaddress
import socket

import psutil


def reachable_name() -> str:
    """This machine's name where it resolves to something else than the loopback (r120), else its first such address.

    Raises OSError where it has none.
    """
    name = socket.getfqdn()
    try:
        found = {str(answer[4][0]) for answer in socket.getaddrinfo(name, None)}
    except OSError:
        found = set()
    if any(_is_reachable(address) for address in found):
        return name
    addresses = (
        address.address
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family == socket.AF_INET and _is_reachable(address.address)
    )
    first: str | None = next(addresses, None)
    if first is None:
        raise OSError("this machine has no address that other machines could reach")
    return first


def _is_reachable(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return not parsed.is_loopback and not parsed.is_link_local


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
