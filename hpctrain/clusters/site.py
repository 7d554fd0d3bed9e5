"""What a cluster profile can say of the site's ways: directives, accounts, modules, network, storage, billing, the way in.

Pure, as `clusters.profile`, whose sections these are. Sizes are bytes and durations seconds, in the units of their types.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from hpctrain.fieldtypes import (
    Boolean,
    CpuBind,
    HostSuffix,
    Module,
    Section,
    Shebang,
    Size,
    SlurmName,
    Text,
    as_list,
    choice,
    problem,
    whole,
)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise problem(f"must be a regular expression: {error}") from error
    return text


Count = Annotated[int, whole(0, 1_000_000)]
Pattern = Annotated[Text, AfterValidator(_pattern)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(as_list)]


class Directives(Section):
    """#SBATCH options by long name without dashes.

    Attributes:
        required: that each job must carry.
        forbidden: option → what the site does or says about it.
        discouraged: option → why the site asks to avoid it; a job with it is taken.
        default: option → value (`true`: a flag) that hpctrain writes unless the user's `sbatch:` says otherwise.
    """

    required: Texts = ()
    forbidden: dict[str, Text] = Field(default_factory=dict)
    discouraged: dict[str, Text] = Field(default_factory=dict)
    default: dict[str, Text] = Field(default_factory=dict)


class Defaults(Section):
    """What a job config gets that says nothing itself."""

    partition: SlurmName | None = None
    qos: SlurmName | None = None
    nodes: SlurmName | None = None  # the kind of node, key of `nodes:`, where no partition or constraint says which


class Account(Section):
    """Who pays. `pattern` matches the whole name; `list_command` prints the user's own."""

    required: Boolean | None = None
    pattern: Pattern | None = None
    ignore_case: Boolean = False
    example: Text | None = None
    list_command: Text | None = None
    note: Text | None = None


class Memory(Section):
    """What a job gets that asks for none, and what it should ask.

    Attributes:
        default_per_cpu, default_per_node: bytes that a job gets without a request.
        request: `per-gpu` (each GPU's `per_gpu`, or its share of the node), `all` (--mem=0) or `none` (the site forbids or needs none).
    """

    default_per_cpu: Size | None = None
    default_per_node: Size | None = None
    per_gpu: Size | None = None
    request: Annotated[Text, choice("per-gpu", "all", "none")] | None = None
    note: Text | None = None


class Modules(Section):
    """Environment modules.

    Attributes:
        start: what comes first: `module purge`, `module reset`, or nothing.
        never_purge: `module purge` breaks the site's modules.
        use: directories for `module use`.
        first: modules that have to be loaded before all others, for every job.
        suggested: what users load; written into the config that `hpctrain init` makes, as a comment.
        on_login_nodes: whether `module load` works there.
    """

    start: Annotated[Text, choice("purge", "reset")] | None = None
    never_purge: Boolean = False
    use: Texts = ()
    first: Annotated[tuple[Module, ...], BeforeValidator(as_list)] = ()
    suggested: Texts = ()
    on_login_nodes: Boolean | None = None
    note: Text | None = None


class Network(Section):
    """The network between nodes: the interface, and NCCL's, RCCL's and libfabric's variables."""

    interface: Text | None = None
    variables: dict[str, Text] = Field(default_factory=dict)
    note: Text | None = None


class Launch(Section):
    """How processes start.

    Attributes:
        shebang: the first line, where it has to be another than #!/bin/bash.
        master_addr_suffix: what is appended to the first host name to get the name on the fast network.
        cpu_bind: of srun, when one task per node starts all processes (accelerate, torchrun).
        cpu_bind_per_gpu: of srun, with one task per GPU on a full node.
        rdzv_is_host: torchrun cannot tell by the host's name which node is the rendezvous host; --rdzv_conf=is_host=… has to say it.
        variables: that the batch shell exports before srun.
        unset: variables that it unsets.
    """

    shebang: Shebang | None = None
    master_addr_suffix: HostSuffix | None = None
    cpu_bind: CpuBind | None = None
    cpu_bind_per_gpu: CpuBind | None = None
    rdzv_is_host: Boolean = False
    variables: dict[str, Text] = Field(default_factory=dict)
    unset: Texts = ()
    scontrol_in_container: Boolean | None = None
    note: Text | None = None


class Internet(Section):
    """Whether compute and login nodes reach the internet; `proxy` is the way where there is no direct one."""

    compute: Annotated[Text, choice("yes", "no", "proxy")] | None = None
    login: Annotated[Text, choice("yes", "no", "proxy")] | None = None
    proxy: Text | None = None
    note: Text | None = None


class Storage(Section):
    """A file system.

    Attributes:
        path: with $USER and <account> where they stand.
        purge_days: files that nobody touched for so long are deleted.
        quota: bytes; `inodes`: number of files.
        on_compute_nodes: False where it is not mounted there.
        in_memory: it lies in RAM and counts as the job's memory.
        slow_for_environments: a conda or venv there is discouraged.
    """

    path: Text | None = None
    purge_days: Count | None = None
    quota: Size | None = None
    inodes: Count | None = None
    on_compute_nodes: Boolean | None = None
    in_memory: Boolean = False
    slow_for_environments: Boolean = False
    note: Text | None = None


class Login(Section):
    """The way in: host and port of ssh, and whether a second factor is asked for."""

    host: Text | None = None
    port: Annotated[int, whole(1, 65_535)] | None = None
    mfa: Boolean | None = None
    note: Text | None = None


class Billing(Section):
    """What is charged: whole nodes or the share that was asked for; `reserved` means by requested time, not by used."""

    unit: Annotated[Text, choice("node", "share")] | None = None
    reserved: Boolean = False
    note: Text | None = None
