"""What NCCL says with NCCL_DEBUG=INFO about the network it uses → transport and interfaces. Pure.

Wording of NCCL 2.18 to 2.27 (src/transport/net_ib.cc, net_socket.cc, bootstrap.cc; the OFI plugin's of aws-ofi-nccl):
    NCCL INFO Bootstrap: Using hsn0:10.0.0.1<0>            (before 2.20: Bootstrap : Using …)
    NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.2.3.4<0>
    NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.0.1.1<0>
    NCCL INFO NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)
    NCCL INFO Using network AWS Libfabric
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?P<name>[^:\s]+):")
_IB = re.compile(r"NET/IB ?: Using (?P<devices>.*?)(?:; OOB (?P<oob>[^:\s]+):.*)?$", re.MULTILINE)
_SOCKET = re.compile(r"NET/Socket ?: Using (?P<devices>.*)$", re.MULTILINE)
_OFI = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<name>[^\s,]+)")
_NETWORK = re.compile(r"Using network (?P<name>.+?)\s*$", re.MULTILINE)
_DEVICE = re.compile(r"\[\d+\]([^:\s\[]+)")


@dataclass(frozen=True, slots=True)
class NcclNetwork:
    """The network of one process.

    Attributes:
        transport: `IB`, `Socket`, or the plugin's name, such as `AWS Libfabric (cxi)`; None where NCCL opened none (one node).
        devices: of the data: InfiniBand devices, or interfaces of sockets.
        bootstrap: the interface over which the ranks find each other.
    """

    transport: str | None = None
    devices: tuple[str, ...] = ()
    bootstrap: str | None = None


def parse(text: str) -> NcclNetwork:
    """Return what the log of one process says; what it does not say is None."""
    bootstrap, ib, sockets = _BOOTSTRAP.search(text), _IB.search(text), _SOCKET.search(text)
    ofi, network = _OFI.search(text), _NETWORK.search(text)
    name = network["name"] if network else "OFI" if ofi else "IB" if ib else "Socket" if sockets else None
    devices: tuple[str, ...] = ()
    if ib and name == "IB":
        devices = tuple(_DEVICE.findall(ib["devices"]))
    elif sockets and name == "Socket":
        devices = tuple(_DEVICE.findall(sockets["devices"]))
    if ofi and name not in ("IB", "Socket"):
        name = f"{name} ({ofi['name']})"
    oob = ib["oob"] if ib else None
    return NcclNetwork(transport=name, devices=devices, bootstrap=bootstrap["name"] if bootstrap else oob)
