"""The kernel's queues of a socket of another process: bytes not yet read, and bytes not yet
received.

Asking for one socket (sock_diag of Linux) takes microseconds. Where that is not allowed,
/proc/net/tcp lists all sockets, slowly on a machine that has closed thousands.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Final

Address = tuple[str, int]

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_LISTENING: Final = 10
_HEAD: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI")
_ANY: Final = 0xFFFFFFFF


def queues(local: Address, remote: Address) -> tuple[int, int] | None:
    """Return the bytes that the owner of ``local`` has not read, and those that ``remote`` lacks.

    None: there is no such socket.
    """
    try:
        return _asked(local, remote)
    except OSError:
        # There is no such socket, or asking is not allowed: the list shows which.
        return _listed(local, remote)


def _asked(local: Address, remote: Address) -> tuple[int, int]:
    ports = struct.pack("!HH", local[1], remote[1])
    hosts = b"".join(socket.inet_aton(host) + bytes(12) for host, _ in (local, remote))
    body = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ANY)
    body += ports + hosts + struct.pack("=III", 0, _ANY, _ANY)
    head = _HEAD.pack(_HEAD.size + len(body), _BY_FAMILY, 1, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as conn:
        conn.sendto(head + body, (0, 0))
        answer = conn.recv(4096)
    if _HEAD.unpack_from(answer)[1] != _BY_FAMILY:
        raise OSError(-struct.unpack_from("=i", answer, _HEAD.size)[0], "no answer")
    if answer[_HEAD.size + 1] == _LISTENING:
        raise OSError("only who accepts such connections is there")
    unread, unsent = struct.unpack_from("=II", answer, _HEAD.size + 4 + 48 + 4)
    return unread, unsent


def _listed(local: Address, remote: Address) -> tuple[int, int] | None:
    ours, theirs = (f":{port:04X}" for _, port in (local, remote))
    with Path("/proc/net/tcp").open() as file:
        for line in file:
            words = line.split()
            if words[1].endswith(ours) and words[2].endswith(theirs):
                unsent, unread = (int(word, 16) for word in words[4].split(":"))
                return unread, unsent
    return None
