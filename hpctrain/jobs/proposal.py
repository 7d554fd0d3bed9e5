"""The config.yaml that `hpctrain init` proposes: the facts found here and in Slurm, the questions
that they raise, the answers, and the file, each value with a comment on its source.

An answer comes from an option, from a fact, or from the user; each question can use the answers
before it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpctrain.clusters import discover, load
from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition
from hpctrain.clusters.merge import ACCOUNTS_COMMAND, gpu_partitions, merge, typical
from hpctrain.config import layers
from hpctrain.config.fields import BY_PATH
from hpctrain.config.layers import Layer
from hpctrain.config.profile_layer import cluster_layer
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.slurm.notations import units
from hpctrain.util import shell
from hpctrain.util.schema import KeyPath
from hpctrain.util.text import is_number

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

#: Timeout in seconds of each Slurm query; all run at the same time.
_TIMEOUT_S = 15.0
#: Directories that contain neither models nor datasets of the user.
_SKIPPED = ("runs", "logs", "node_modules", "__pycache__")


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A Python environment for the job: `kind` is a key of `environment:` in config.yaml, `why`
    explains how it was found.
    """

    kind: str
    value: str
    why: str


def live_cluster() -> LiveCluster | None:
    """Return what Slurm reports about the cluster; None if Slurm is not on PATH.

    Raises:
        SchedulerError: Slurm is installed, but reports no partition.
    """
    if not discover.is_available():
        return None
    live = discover.discover(timeout=_TIMEOUT_S)
    if live.partitions is None:  # accounting may have answered, but a job needs a partition
        details = live.silent[:1] or ("sinfo shows no partition",)
        raise SchedulerError("Slurm does not answer", details=details, fix="sinfo")
    return live


def _folders(name: str) -> list[str]:
    """Return the directories up to two levels down that contain a file of that name; names that are
    not UTF-8 would break YAML.
    """
    found = sorted(path.parent for path in (*Path().glob(f"*/{name}"), *Path().glob(f"*/*/{name}")))
    return [
        str(path)
        for path in found
        if str(path).isprintable()
        and not any(part[0] == "." or part in _SKIPPED for part in path.parts)
    ]


def _environments(environment: Mapping[str, str]) -> Iterator[PythonEnvironment]:
    """Yield the environments that the job may use, the likeliest first, each once."""
    active, here = environment.get("VIRTUAL_ENV"), Path.cwd()
    # Not resolved: a link in the path may lead elsewhere on the compute nodes.
    places = {Path(active).absolute(): "active here"} if active else {}
    places |= {here / name: "found here" for name in (".venv", "venv") if here / name not in places}
    # hpctrain's own environment contains torch, so it can run a training.
    if any(Path(sys.prefix).glob("lib/python3*/site-packages/torch")):
        places.setdefault(Path(sys.prefix), "hpctrain itself runs in it")
    for path, why in places.items():
        if (path / "bin" / "activate").is_file():
            place = path.relative_to(here) if path.is_relative_to(here) else path
            yield PythonEnvironment("venv", str(place), why)
    if conda := environment.get("CONDA_DEFAULT_ENV"):
        yield PythonEnvironment("conda", conda, "active here")


#: How to handle several possible answers: ask; take the best; or name the missing options.
Mode = Literal["ask", "best", "strict"]
SHOWN = 12
#: Options that are not in the options table.
FURTHER: dict[KeyPath, str] = {
    ("training", "model_name_or_path"): "--model",
    ("training", "dataset_name"): "--dataset",
}


@dataclass(frozen=True, slots=True)
class ConfigQuestion:
    """One key of the config.

    Attributes:
        path: its path.
        text: the question.
        choices: the values found, each with a note on its merits or limits; a single one needs no
            question.
        best: the answer with --yes or Enter; None if no choice is best.
        why: the source of the default answer.
        needed: whether the config is invalid without an answer.
    """

    path: KeyPath
    text: str
    choices: Mapping[str, str]
    best: str | None
    why: str
    needed: bool

    @property
    def lines(self) -> list[str]:
        """The first choices with their notes, a line each."""
        shown = list(self.choices.items())[:SHOWN]
        return [f"{value}  ({note})" if note else value for value, note in shown]

    @property
    def option(self) -> str:
        """The command-line option that answers it."""
        return FURTHER.get(self.path) or BY_PATH[self.path].option


@dataclass(frozen=True, slots=True)
class Answer:
    """A value, None if none is needed, and its source."""

    value: str | None
    why: str


def _layer(values: Mapping[KeyPath, str]) -> Layer:
    return layers.from_options(
        {path: value for path, value in values.items() if path in BY_PATH}, ()
    )


def checked(value: str, question: ConfigQuestion) -> str:
    """Return `value`, checked against the schema and the choices.

    Raises:
        UsageError: the value is not allowed.
    """
    layers.resolve([_layer({question.path: value})], again="hpctrain init")
    written = (
        str.lower if question.path[-1] in ("account", "qos") else str
    )  # Slurm ignores their case
    known = set(map(written, question.choices))
    if known and written(value) not in known and question.path not in FURTHER:
        best = question.best or next(iter(question.choices))
        raise UsageError(
            f"unknown {question.path[-1]} {value!r}",
            details=tuple(f"  {line}" for line in question.lines),
            fix=f"hpctrain init {question.option} {shell.quote(best)}",
        )
    return value


@dataclass(slots=True)
class Proposal:
    """The facts known before the first question, and all questions of one call, in order; each can
    use the answers before it.

    Attributes:
        given: the options, the HPCTRAIN_* variables and the user's own config, highest precedence
            first.
        prompt: asks the user (mode `ask`).
        further: --model and --dataset.
        detected: names of the profiles that match this machine.
        profile: the chosen profile as written; None without one.
        cluster: the profile merged with Slurm's answers; None if there is neither.
        live: Slurm's answers; all unknown without Slurm.
        models: directories, relative to the current one; so are the datasets.
        local_gpus: the number of local GPUs.
        missing: required questions without an answer.
        taken: the answers taken as the best choice, as text.
    """

    mode: Mode
    given: Sequence[Layer]
    prompt: Callable[[ConfigQuestion], Answer]
    further: Mapping[KeyPath, str] = field(default_factory=dict)
    detected: Sequence[str] = ()
    profile: Cluster | None = None
    cluster: Cluster | None = None
    live: LiveCluster = field(default_factory=LiveCluster)
    models: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    environments: list[PythonEnvironment] = field(default_factory=list)
    local_gpus: int = 0
    known: dict[KeyPath, Answer] = field(default_factory=dict)
    missing: list[ConfigQuestion] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def gather(self, live: LiveCluster | None) -> None:
        """Find the facts, and ask for the cluster if several profiles match this machine.

        Raises:
            UsageError: there is no such profile, or it is invalid.
        """
        title = live.cluster_name if live is not None else os.environ.get("SLURM_CLUSTER_NAME")
        self.detected = load.detect(os.environ, cluster_name=title, hosts=(socket.gethostname(),))
        name = self.ask(
            ("cluster",),
            "Which cluster is this? Several profiles match.",
            choices=dict.fromkeys(self.detected, ""),
            best=next(iter(self.detected), None),
            why="the profile matches this machine",
            needed=len(self.detected) > 1,
        )
        if name is not None:
            self.profile = load.load(name, os.environ)
            # the profile's own name: Jean-Zay becomes jean_zay
            why = self.known["cluster",].why
            self.known["cluster",] = Answer(self.profile.profile.name, why)
        self.cluster = merge(self.profile, live) if live is not None else self.profile
        self.live = live or LiveCluster()
        weights = (each for each in _folders("config.json") if [*Path(each).glob("*.safetensors")])
        self.models, self.datasets = list(weights), _folders("dataset_dict.json")
        # datasets.save_to_disk writes a directory of splits, or a single dataset
        self.datasets += [
            each
            for each in _folders("state.json")
            if Path(each, "dataset_info.json").is_file()
            and str(Path(each).parent) not in self.datasets
        ]
        self.environments = list(_environments(os.environ))
        names = (path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*"))
        self.local_gpus = sum(map(is_number, names))

    @property
    def has_slurm(self) -> bool:
        """Whether Slurm answered."""
        return self.live.partitions is not None

    def value(self, *path: str) -> str | None:
        """Return the answer so far; of `resources`, the last part of the path is enough."""
        answer = self.known.get(path if len(path) > 1 else ("resources", *path))
        return answer.value if answer is not None else None

    def ask(
        self,
        path: KeyPath,
        text: str = "",
        *,
        choices: Mapping[str, str] | None = None,
        best: str | None = None,
        why: str = "",
        needed: bool = False,
    ) -> str | None:
        """Find the answer to a question and record it; see `ConfigQuestion`."""
        question = ConfigQuestion(path, text, choices or {}, best, why, needed)
        answer = self._given(path)
        if answer is not None:
            checked(str(answer.value), question)
        elif len(question.choices) == 1:
            answer = Answer(next(iter(question.choices)), why)
        elif needed and self.mode == "ask":
            answer = self.prompt(question)
        else:
            answer = Answer(best, why)
            if needed and (self.mode == "strict" or best is None):
                self.missing.append(question)
            elif len(question.choices) > 1 and best is not None:
                self.taken.append(f"{question.option} {shell.quote(best)}: {why}")
        self.known[path] = answer
        return answer.value

    def _given(self, path: KeyPath) -> Answer | None:
        given = self.further.get(path) or layers.written(self.given, path)
        if not isinstance(given, str) or not given:
            return None
        origin = next(filter(None, (each.origins.get(path) for each in self.given)), "--")
        return Answer(given, "your option" if origin.startswith("--") else origin)

    def answer_all(self) -> None:
        """Ask for everything except the cluster."""
        self._account()
        self._partition()
        self._qos()
        self._gpu_type()
        self._gpus()
        self.ask(("resources", "nodes"), best="1", why="use more only if one is too small")
        most, name = None, self.value("partition")
        if self.cluster is not None and name in self.cluster.profile.partitions:
            most = self.cluster.profile.partitions[name].time_max
        limit = f"at most {units.format_time(most)} in the partition" if most else ""
        time = units.format_time(min(3600, most or 3600))
        self.ask(("resources", "time"), best=time, why=limit or "shorter jobs start sooner")
        if self.profile is None and self.live.job_requeue is False:
            self.known["restart", "mode"] = Answer("chain", "JobRequeue=0: scontrol show config")
        likeliest = min(self.environments, key=lambda each: each.why != "active here", default=None)
        given = {kind: self._given(("environment", kind)) for kind in ("venv", "conda")}
        if any(given.values()):
            self.known |= {("environment", kind): each for kind, each in given.items() if each}
        elif likeliest is not None:
            self.known["environment", likeliest.kind] = Answer(likeliest.value, likeliest.why)
        for path, known in zip(FURTHER, (self.models, self.datasets), strict=True):
            best = next(iter(known), None)
            self.ask(path, choices=dict.fromkeys(known, ""), best=best, why="found here")

    # -- what Slurm and the profile say about the answers so far

    def _associations(self, account: str | None) -> list[Association]:
        return [each for each in self.live.associations or () if each.account == account]

    def _live_partition(self) -> LivePartition:
        chosen = self.value("partition")
        known = self.live.partition(chosen) if chosen is not None else None
        return known or LivePartition(name="")

    def _nodes(self) -> LiveNodes | None:
        """Return the nodes that the job will most likely run on, as Slurm reports them."""
        kind, groups = self.value("gpu_type"), self._live_partition().nodes
        return typical([group for group in groups if kind is None or kind in dict(group.gpus)])

    def _by_constraint(self) -> bool:
        """Whether the site selects partitions by constraint (IDRIS, NERSC), and none was named."""
        if self.profile is None or self._given(("resources", "partition")):
            return False
        profile = self.profile.profile
        by_constraint = any(shape.select.constraint for shape in profile.nodes.values())
        chosen = profile.partition_required or profile.defaults.partition is not None
        return by_constraint and not chosen

    def _usable(self) -> tuple[LivePartition, ...]:
        """Return the partitions that the account may use: those with GPUs, the best first; all that
        are up if Slurm reports no GPUs.
        """
        account, live = self.value("account"), self.live
        rows = self._associations(account)
        only = {each.partition for each in rows}
        known = gpu_partitions(live) or tuple(
            each for each in live.partitions or () if each.up is not False and each.nodes
        )
        return tuple(
            each
            for each in known
            if (each.allow_accounts is None or account is None or account in each.allow_accounts)
            and account not in each.deny_accounts
            and (not only or None in only or each.name in only)
        )

    def _allowed_qos(self) -> tuple[tuple[str, ...], str | None]:
        rows = self._associations(self.value("account"))
        for name in (self.value("partition"), None):
            rows = [each for each in rows if each.partition == name] or rows
        partition = self._live_partition()
        names = dict.fromkeys(qos for row in rows for qos in row.qos)
        default = next((row.default_qos for row in rows if row.default_qos), None)
        return tuple(qos for qos in names if _takes(partition, qos)), default

    # -- the questions

    def _account(self) -> None:
        live, path = self.live, ("resources", "account")
        if not live.accounts:
            policy = self.cluster.profile.account if self.cluster is not None else None
            command = (policy.list_command if policy is not None else None) or ACCOUNTS_COMMAND
            self.ask(
                path,
                f"Which account is charged? List yours with: {command}",
                needed=(policy is not None and bool(policy.required))
                or (bool(live.enforces_accounts) and live.accounts is not None),
                why="not required",
            )
            return
        default = live.default_account if live.default_account in live.accounts else None
        why = "your default account" if default else "the first of yours"
        choices = {}
        for name in live.accounts:
            limits = [each.time_max for each in self._associations(name) if each.time_max]
            limit = f"at most {units.format_time(min(limits))}" if limits else ""
            choices[name] = ", ".join(filter(None, ("default" * (name == default), limit)))
        self.ask(
            path,
            "Which account is charged?",
            choices=choices,
            best=default or live.accounts[0],
            why=f"{'your only account' if len(choices) == 1 else why}: sacctmgr",
            needed=True,
        )

    def _partition(self) -> None:
        """Ask for the partition; at sites that select nodes by constraint, take the constraint of
        nodes that the account can pay for.
        """
        path, cluster, profile = ("resources", "partition"), self.cluster, self.profile
        constraint = self._given(("resources", "constraint"))
        if constraint is not None:
            self.known["resources", "constraint"] = constraint
        if profile is not None and self._by_constraint():
            self.ask(path, why="none: the constraint chooses")
            name = profile.profile.shape_name(partition=None, account=self.value("account"))
            if constraint is None and name is not None:
                source = profile.evidence("nodes", name, "select", "constraint")
                wanted = profile.profile.nodes[name].select.constraint
                self.known["resources", "constraint"] = Answer(wanted, f"{name} nodes: {source}")
            return
        if cluster is None:
            return
        if self.live.partitions:
            kind = layers.written(self.given, ("resources", "gpu_type"))
            known = self._usable()
            of_kind = [each for each in known if any(kind in dict(row.gpus) for row in each.nodes)]
            choices = {each.name: _described(each) for each in of_kind or known}
            why = "the only one with GPUs: sinfo" if len(choices) == 1 else "with GPUs: sinfo"
        else:
            choices = {
                name: units.format_time(each.time_max) if each.time_max else ""
                for name, each in cluster.profile.partitions.items()
                if each.nodes is not None and cluster.profile.nodes[each.nodes].gpus > 0
            }
            why = cluster.evidence("defaults", "partition")
        default = cluster.profile.defaults.partition
        self.ask(
            path,
            "Which partition?",
            choices=choices,
            best=default if default in choices else next(iter(choices), None),
            why=why,
            needed=len(choices) > 1,
        )

    def _qos(self) -> None:
        """Ask for a QOS, if the default would be refused or one is mandatory."""
        names, default = self._allowed_qos()
        profile = self.cluster.profile if self.cluster is not None else None
        refused = default is not None and not _takes(self._live_partition(), default)
        required = profile is not None and profile.qos_required
        if not names and required and profile is not None:
            names, default = tuple(profile.qos), profile.defaults.qos
        if not (required or refused) or not names:
            self.ask(("resources", "qos"), why="the default one")
            return
        self.ask(
            ("resources", "qos"),
            "Which QOS?",
            choices=dict.fromkeys(names, ""),
            best=default if default in names else names[0],
            why="required by the partition" if refused else "required by the site",
            needed=True,
        )

    def _gpu_type(self) -> None:
        """Ask for a GPU type, if the partition has several: a job would get any mix of them. If the
        site has a profile, it decides whether a request has to name the only type.
        """
        partition, counts = self._live_partition(), dict[str, int]()
        for group in partition.nodes:
            for kind, count in group.gpus:
                counts[kind] = counts.get(kind, 0) + count * group.count
        kinds = sorted(filter(None, counts), key=lambda kind: (is_slice(kind), -counts[kind]))
        if not kinds or (len(kinds) == 1 and (self.profile is not None or "" in counts)):
            self.ask(("resources", "gpu_type"), why="not required")
            return
        why = "most of the whole GPUs" if len(kinds) > 1 else "the only type"
        self.ask(
            ("resources", "gpu_type"),
            f"Which GPUs? {partition.name} has several kinds.",
            choices={kind: f"{counts[kind]} in all" for kind in kinds},
            best=kinds[0],
            why=f"{why}: sinfo -p {partition.name}",
            needed=True,
        )

    def _gpus(self) -> None:
        nodes, kind, cluster = self._nodes(), self.value("gpu_type"), self.cluster
        count, source = self.local_gpus, "of this machine"
        if nodes is not None and nodes.gpu_count:
            count = dict(nodes.gpus)[kind] if kind else nodes.gpu_count
            source = f"sinfo -p {self.value('partition')}"
        elif cluster is not None:
            name = cluster.profile.shape_name(
                partition=self.value("partition"),
                constraint=self.value("constraint"),
                account=self.value("account"),
            )
            count = cluster.profile.nodes[name].gpus if name is not None else 0
            source = cluster.evidence("nodes", str(name), "gpus")
        why = f"all of a node: {source}" if count else "one process per GPU"
        self.ask(("resources", "gpus_per_node"), best=str(count or 1), why=why)

    # -- the file

    def text(self) -> str:
        """Return the complete config.yaml."""
        live = self.live
        on = f" for {live.cluster_name or 'this cluster'}" if self.has_slurm else ""
        version = f" (Slurm {live.version[0]}.{live.version[1]:02})" if live.version else ""
        note = "no profile for this site" if self.has_slurm else "cluster profile"
        cluster = _line("# cluster: NAME", f"{note}; list: hpctrain clusters")
        if self.profile is not None:
            name = self.profile.profile.name
            cluster = _line(f"cluster: {name}", f"sources: hpctrain clusters show {name}")
        restart = self._answer("restart", "mode")
        parts = (
            _clean(f"# Job config{on}{version}, created by `hpctrain init`."),
            "# Comments name the source of each value.",
            "# Options (hpctrain render --nodes 2) and HPCTRAIN_* variables override it.",
            *("", cluster, "", "job_name: sft"),
            _line("launcher: accelerate", "or torchrun, or srun: one task per GPU"),
            *("", "resources:", *self._resources(), ""),
            *(("restart:", *restart, "") if restart else ()),
            *("environment:", *self._environment(), ""),
            _line("# script: train.py", "Default: the built-in training"),
            _line("training:", "arguments of the script, as --key value"),
            *(
                self._answer("training", "model_name_or_path")
                or (
                    "  # directory of a model; or: hpctrain prepare --demo demo",
                    "  # model_name_or_path: models/my_model",
                )
            ),
            *(
                self._answer("training", "dataset_name")
                or (
                    "  # directory of a tokenized dataset; or: hpctrain prepare --demo demo",
                    "  # dataset_name: data/my_dataset",
                )
            ),
            "  # max_steps: 1000",
        )
        return "\n".join(part.rstrip() for part in parts) + "\n"

    def _answer(self, *path: str) -> list[str]:
        answer = self.known.get(path)
        if answer is None or answer.value is None:
            return []
        return [_line(f"  {path[-1]}: {scalar(answer.value)}", answer.why)]

    def _resources(self) -> Iterator[str]:
        partition = self.value("partition")
        for name in ("nodes", "gpus_per_node", "time"):
            yield from self._answer("resources", name)
        live = self._live_partition()
        if partition is None:
            none = "none: the constraint chooses" if self._by_constraint() else "the site's default"
            yield _line("  # partition: NAME", none)
        else:
            why = self.known["resources", "partition"].why
            why = f"{_described(live)}; {why}" if live.name else why
            yield _line(f"  partition: {scalar(partition)}", why)
        yield from self._answer("resources", "constraint")
        command = self.cluster.profile.account.list_command if self.cluster is not None else None
        listed = f"account to charge; list: {command}" if command else "account to charge"
        yield from self._answer("resources", "account") or [
            _line("  # account: my_project", listed)
        ]
        names, default = self._allowed_qos()
        qos = _line(f"  # qos: {scalar(default or next(iter(names), 'normal'))}", "")
        yield from self._answer("resources", "qos") or [qos]
        yield from self._answer("resources", "gpu_type")
        yield from self._derived()

    def _derived(self) -> Iterator[str]:
        """Yield the lines that follow from the answers: as a comment if the profile supplies the
        value at every `render`, as a value if only Slurm does.
        """
        cluster, profile = self.cluster, self.profile
        known = {path: each.value for path, each in self.known.items() if each.value is not None}
        merged = cluster_layer(cluster, [_layer(known)]) if cluster is not None else None
        by_profile = cluster_layer(profile, [_layer(known)]) if profile is not None else None
        gpus, partition = int(self.value("gpus_per_node") or 1), self._live_partition()
        for name in ("gpu_directive", "cpus_per_gpu", "mem", "constraint"):
            path: KeyPath = ("resources", name)
            value = layers.written([merged], path) if merged is not None else None
            if self.value(name) is not None:
                continue  # already written
            if merged is None or value is None:
                if name == "mem":
                    yield _line("  # mem: 64G", "per node; 0 requests all of it")
                continue
            value, why = str(value), merged.origins.get(path, "")
            if by_profile is not None and value == layers.written([by_profile], path):
                yield _line(f"  # {name}: {scalar(value)}", why)
            elif name == "mem" and value != "0" and gpus:
                # Per GPU, so that a job with fewer GPUs takes only their share of a shared node.
                share, nodes = units.parse_memory(value) // gpus, self._nodes()
                most = partition.memory_max_per_node
                if most and nodes is not None and nodes.gpu_count * share > most:
                    share = most // nodes.gpu_count
                    why = f"MaxMemPerNode: scontrol show partition {partition.name}"
                yield _line(f"  mem_per_gpu: {units.round_memory_down(share)}", why)
            else:
                yield _line(f"  {name}: {scalar(value)}", why)

    def _environment(self) -> Iterator[str]:
        cluster = self.cluster
        modules = ", ".join(cluster.profile.modules.suggested) if cluster is not None else ""
        source = "loaded on the compute node, in this order"
        if modules and cluster is not None:
            source = f"users of this cluster load: {cluster.evidence('modules', 'suggested')}"
        yield _line(f"  # modules: [{modules or 'cuda/12.2'}]", source)
        chosen = [path for path in self.known if path[0] == "environment"]
        none = _line("  # venv: .venv", "no environment found; or conda: NAME, uv: DIR, pixi: DIR")
        yield from [line for path in chosen for line in self._answer(*path)] or [none]


def _takes(partition: LivePartition, qos: str) -> bool:
    allowed = partition.allow_qos is None or qos in partition.allow_qos
    return allowed and qos not in partition.deny_qos


def _described(partition: LivePartition) -> str:
    kinds = sorted(
        {(kind or "GPU", count) for group in partition.nodes for kind, count in group.gpus},
        key=lambda pair: -pair[1],
    )
    parts = (
        " or ".join(f"{count} x {kind}" for kind, count in kinds[:4]) or "no GPU",
        units.format_time(partition.time_max) if partition.time_max else "",
        f"{sum(group.count for group in partition.nodes)} nodes",
        f"at most {partition.nodes_max} per job" if partition.nodes_max else "",
        "whole nodes" if partition.exclusive else "",
    )
    return ", ".join(filter(None, parts))


def is_slice(kind: str) -> bool:
    """Whether a GPU type is a MIG slice, such as `a100_1g.5gb`; slices of one GPU cannot
    communicate over NCCL.
    """
    return re.search(r"\dg\.", kind) is not None


# -- the text --------------------------------------------------------------------------------------

_WIDTH = 80
#: The source after the level of evidence: `hpctrain clusters show NAME` prints it, once for all
#: values.
_SOURCE = re.compile(r"(?<=: )(documented|reported|seen|recalled), [^;]*")
#: Values that neither YAML nor a reader can mistake for anything but text; all others are quoted.
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+=-]*(:[A-Za-z0-9_./@+=-]+)*\Z")
_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off"})


def scalar(value: str) -> str:
    """Return `value` so that YAML reads it back unchanged: plain if that is safe, else
    double-quoted as in JSON.
    """
    if _PLAIN.match(value) and value.lower() not in _NOT_TEXT:
        return value
    # JSON's surrogate pairs for characters beyond U+FFFF are not valid YAML, and YAML requires more
    # characters to be escaped.
    return "".join(
        each if each.isprintable() else f"\\U{ord(each):08x}"
        for each in json.dumps(value, ensure_ascii=False)
    )


def _line(code: str, why: str) -> str:
    why = _clean(_SOURCE.sub(r"\1", why)).strip()
    start = f"{code:<31} # "
    return (
        textwrap.fill(
            why,
            max(_WIDTH, len(start) + 30),
            initial_indent=start,
            subsequent_indent=f"{'':<31} # ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        or code
    )


def _clean(words: str) -> str:
    """Return `words` on one line without control characters, which would end the comment and start
    a key.
    """
    return "".join(character if character.isprintable() else " " for character in words)
