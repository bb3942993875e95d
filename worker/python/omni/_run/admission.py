"""Requests that reach no handler, as a node on loopback refuses them (`gateway/ingress/src/check/host.rs`)."""

from __future__ import annotations

import ipaddress

from omni._run.refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from email.message import Message


def check(headers: Message, method: str, version: str) -> None:
    """Checks that a request names this server, and comes from no page of another site. Raises `Refused`."""
    hosts = headers.get_all("host", [])
    if len(hosts) > 1 or (not hosts and version != "HTTP/1.0") or any("@" in host for host in hosts):
        raise Refused(400, 5004, "a request has to name one host: exactly one `Host`")
    for host in hosts:
        name = _without_port(host)
        if not _is_local(name):
            raise Refused(421, 7003, f"this server answers to localhost and 127.0.0.1, not to the name `{name[:255]}`")
        if method not in ("GET", "HEAD", "OPTIONS") and not _is_own_site(headers, host):
            raise Refused(403, 9109, "this server takes no requests from pages of other sites")


def check_encoding(headers: Message) -> None:
    """Checks that a body has no encoding. Raises `Refused`."""
    said = [value.strip() for value in headers.get_all("content-encoding", [])]
    encoding = ", ".join(value for value in said if value and value.lower() != "identity")
    if encoding:
        what = f"the request's body has `content-encoding: {encoding[:64]}`"
        raise Refused(415, 5004, f"{what}, which a node does not take: send it unencoded")


def check_json(headers: Message) -> None:
    """Checks that a body is JSON by its media type, or has none. Raises `Refused`."""
    types = [value.partition(";")[0].strip().lower() for value in headers.get_all("content-type", [])]
    if types and (len(types) > 1 or not (types[0] == "application/json" or types[0][1:].endswith("+json"))):
        raise Refused(400, 5004, "this route takes JSON: send `content-type: application/json`")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_local(name: str) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        bare = name[:-1] if name.endswith(".") else name
        return bare.rpartition(".")[2].lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_own_site(headers: Message, host: str) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    return all(origin.partition("://")[2].lower() == host.lower() for origin in headers.get_all("origin", []))
