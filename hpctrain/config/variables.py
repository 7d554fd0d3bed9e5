"""The environment variables of a job: the cluster's, then a named profile's, then the user's own, each laid over the one before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpctrain.errors import UsageError

if TYPE_CHECKING:
    from hpctrain.config.environment import Environment

#: The profile that the cluster's layer writes; every other one lies over it.
CLUSTER = "cluster"
#: Profiles that come with hpctrain.
SHIPPED: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    # Left over from debugging or from another machine, these serialise kernels, switch fast paths off or choose the wrong network.
    # The flight recorder (TORCH_FR_BUFFER_SIZE) wants the default way of error handling, 3 (pytorch/pytorch#121055).
    # Names: NVIDIA's NCCL user guide (environment variables), torch.distributed (ProcessGroupNCCL.hpp), CUDA programming guide.
    "large-scale": (
        {
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1800", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "NCCL_DEBUG": "WARN",
        },
        (
            "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NCCL_SOCKET_IFNAME", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE",
            "NCCL_P2P_LEVEL", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG_SUBSYS",
            "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DISTRIBUTED_DEBUG", "TORCH_SHOW_CPP_STACKTRACES",
        ),
    ),
    "debug": (
        {
            "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_CPP_LOG_LEVEL": "INFO",
            "TORCH_SHOW_CPP_STACKTRACES": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        },
        (),
    ),
}  # fmt: skip


def resolved(environment: Environment) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a job sets, and those that it unsets; no name is in both.

    Raises:
        UsageError: an unknown profile, or one that extends itself.
    """
    sets: dict[str, str] = {}
    unset: list[str] = []
    layers = [_layer(environment, name) for name in (CLUSTER, *_chain(environment)) if name != CLUSTER or CLUSTER in environment.profiles]
    for values, names in [*layers, (environment.env, environment.unset)]:
        for name in names:
            sets.pop(name, None)
        unset = [name for name in dict.fromkeys((*unset, *names)) if name not in values]
        sets |= values
    kept = environment.secrets  # the cluster's profile, or a named one, does not undo a secret
    return {name: value for name, value in sets.items() if name not in kept}, tuple(name for name in unset if name not in kept)


def _layer(environment: Environment, name: str) -> tuple[Mapping[str, str], tuple[str, ...]]:
    own = environment.profiles.get(name)
    return (own.env, own.unset) if own is not None else SHIPPED[name]


def _chain(environment: Environment) -> list[str]:
    """Return the chosen profile and what it extends, the base first."""
    chain: list[str] = []
    name = environment.profile
    while name is not None:
        own = environment.profiles.get(name)
        known = sorted({*SHIPPED, *environment.profiles} - {CLUSTER})
        if own is None and name not in SHIPPED:
            raise UsageError(
                f"there is no environment profile {name!r}", details=(f"known are {', '.join(known)}",), fix=f"--env-profile {known[0]}"
            )
        if name in chain:
            raise UsageError(
                f"environment profile {name!r} extends itself, by way of {' and '.join(chain)}",
                fix="edit environment.profiles in config.yaml",
            )
        chain.append(name)
        name = own.extends if own is not None else None
    return [*reversed(chain)]
