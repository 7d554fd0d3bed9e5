"""The config that `hpctrain init` proposes: the facts found locally and in Slurm, the questions
that they raise, and the answers.

An answer comes from an option, from a fact, or from the user; each question can use the answers
before it.
"""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpctrain.clusters import discover, load
from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition
from hpctrain.clusters.merge import ACCOUNTS_COMMAND, gpu_partitions, merge, typical
from hpctrain.config import layers
from hpctrain.config.fields import BY_PATH
from hpctrain.config.layers import Layer, written
from hpctrain.errors import SchedulerError, UsageError
from hpctrain.slurm.notations import units
from hpctrain.util import shell
from hpctrain.util.schema import KeyPath
from hpctrain.util.text import is_number

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

#: Timeout in seconds of each Slurm query; all run at the same time.
TIMEOUT_S = 15.0
#: The most entries of a directory to examine.
_MANY = 500


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """A Python environment for the job: `kind` is a key of `environment:` in config.yaml, `why`
    explains how it was found.
    """

    kind: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """The facts known before the first question.

    Attributes:
        detected: names of the profiles that match this machine.
        profile: the chosen profile as written; None without one.
        cluster: the profile merged with Slurm's answers; None if there is neither.
        live: Slurm's answers; all unknown without Slurm.
        models: directories, relative to the current one.
        datasets: directories, relative to the current one.
        local_gpus: the number of local GPUs.
    """

    detected: tuple[str, ...] = ()
    profile: Cluster | None = None
    cluster: Cluster | None = None
    live: LiveCluster = field(default_factory=LiveCluster)
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    environments: tuple[PythonEnvironment, ...] = ()
    local_gpus: int = 0

    @property
    def has_slurm(self) -> bool:
        """Whether Slurm answered."""
        return self.live.partitions is not None


def live_cluster() -> LiveCluster | None:
    """Return what Slurm reports about the cluster; None if Slurm is not on PATH.

    Raises:
        SchedulerError: Slurm is installed, but reports no partition.
    """
    if not discover.is_available():
        return None
    live = discover.discover(timeout=TIMEOUT_S)
    if live.partitions is None:  # accounting may have answered, but a job needs a partition
        details = live.silent[:1] or ("sinfo shows no partition",)
        raise SchedulerError("Slurm does not answer", details=details, fix="sinfo")
    return live


def detected(live: LiveCluster | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the profiles that match this machine."""
    name = live.cluster_name if live is not None else environment.get("SLURM_CLUSTER_NAME")
    return tuple(load.detect(environment, cluster_name=name, hosts=(socket.gethostname(),)))


def gather(
    name: str | None,
    live: LiveCluster | None,
    known: tuple[str, ...],
    environment: Mapping[str, str],
) -> SiteFacts:
    """Return the facts, with the profile `name` (None: without a profile).

    Raises:
        UsageError: there is no such profile, or it is invalid.
    """
    profile = merged = None
    if name is not None:
        profile = merged = load.load(name, environment)
    if live is not None:
        merged = merge(profile, live)
    models, datasets = _folders(Path())
    return SiteFacts(
        detected=known,
        profile=profile,
        cluster=merged,
        live=live or LiveCluster(),
        models=models,
        datasets=datasets,
        environments=tuple(_environments(environment, Path())),
        local_gpus=sum(
            is_number(path.name.removeprefix("nvidia")) for path in Path("/dev").glob("nvidia*")
        ),
    )


def _folders(directory: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    models: list[str] = []
    datasets: list[str] = []
    for first in _directories(directory):
        for folder in (first, *_directories(first)):
            if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
                models.append(str(folder))
            # datasets.save_to_disk writes these: several splits, or a single dataset that is not a
            # split of one found already.
            elif (folder / "dataset_dict.json").is_file() or (
                (folder / "state.json").is_file()
                and (folder / "dataset_info.json").is_file()
                and str(folder.parent) not in datasets
            ):
                datasets.append(str(folder))
    return tuple(models), tuple(datasets)


def _directories(directory: Path) -> list[Path]:
    """Return the subdirectories to search, except names that are not UTF-8, which break YAML."""
    try:
        entries = list(itertools.islice(directory.iterdir(), _MANY))
    except OSError:
        return []
    skipped = ("runs", "logs", "node_modules", "__pycache__")
    return sorted(
        path
        for path in entries
        if path.name[0] != "."
        and path.name.isprintable()
        and path.name not in skipped
        and load.is_dir(path)
    )


def _environments(environment: Mapping[str, str], directory: Path) -> Iterator[PythonEnvironment]:
    """Yield the environments that the job may use, the likeliest first, each once."""
    places = [(directory / ".venv", "found here"), (directory / "venv", "found here")]
    if environment.get("VIRTUAL_ENV"):
        places.insert(0, (Path(environment["VIRTUAL_ENV"]), "active here"))
    # hpctrain's own environment contains torch, so it can run a training.
    if any(Path(sys.prefix).glob("lib/python3*/site-packages/torch")):
        places.append((Path(sys.prefix), "hpctrain itself runs in it"))
    seen: set[Path] = set()
    for path, why in places:
        if (path / "bin" / "activate").is_file() and path.resolve() not in seen:
            seen.add(path.resolve())
            found, here = path.absolute(), Path.cwd()
            inside = found.is_relative_to(here)
            yield PythonEnvironment("venv", str(found.relative_to(here) if inside else found), why)
    if (directory / ".pixi" / "envs" / "default").is_dir():
        yield PythonEnvironment("pixi", ".", "found here")
    conda = environment.get("CONDA_DEFAULT_ENV")
    if conda:
        yield PythonEnvironment("conda", conda, "active here")


#: How to handle several possible answers: ask; take the best; or name the missing options.
Mode = Literal["ask", "best", "strict"]
SHOWN = 12
#: Options that are not in the options table.
FURTHER: dict[KeyPath, str] = {
    ("training", "model_name_or_path"): "--model",
    ("training", "dataset_name"): "--dataset",
}


@dataclass(frozen=True, slots=True, kw_only=True)
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
    text: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    best: str | None = None
    why: str = ""
    needed: bool = False

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


@dataclass(slots=True)
class Answers:
    """All questions of one call, in order; each can use the answers before it.

    Attributes:
        given: the options, the HPCTRAIN_* variables and the user's own config, highest precedence
            first.
        prompt: asks the user (mode `ask`).
        further: --model and --dataset.
        missing: required questions without an answer.
        taken: the answers taken as the best choice, as text.
    """

    mode: Mode
    given: Sequence[Layer]
    prompt: Callable[[ConfigQuestion], Answer]
    further: Mapping[KeyPath, str] = field(default_factory=dict)
    known: dict[KeyPath, Answer] = field(default_factory=dict)
    missing: list[ConfigQuestion] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def value(self, *path: str) -> str | None:
        """Return the answer so far."""
        answer = self.known.get(path)
        return answer.value if answer is not None else None

    def ask(self, question: ConfigQuestion) -> str | None:
        """Find the answer to a question and record it."""
        answer = self._answer(question)
        self.known[question.path] = answer
        return answer.value

    def layer(self) -> Layer:
        """Return the answers as a layer of a job config."""
        return _layer(
            {path: answer.value for path, answer in self.known.items() if answer.value is not None}
        )

    def _answer(self, question: ConfigQuestion) -> Answer:
        given = self.further.get(question.path) or layers.written(self.given, question.path)
        if isinstance(given, str) and given:
            origins = (each.origins.get(question.path) for each in self.given)
            origin = next(filter(None, origins), question.option)
            why = "your option" if origin.startswith("--") else origin
            return Answer(checked(given, question), why)
        if len(question.choices) == 1:
            return Answer(next(iter(question.choices)), question.why)
        if question.needed and self.mode == "ask":
            return self.prompt(question)
        if question.needed and (self.mode == "strict" or question.best is None):
            self.missing.append(question)
        elif len(question.choices) > 1 and question.best is not None:
            self.taken.append(f"{question.option} {shell.quote(question.best)}: {question.why}")
        return Answer(question.best, question.why)


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
    name, known = question.path[-1], set(question.choices)
    if name in ("account", "qos"):  # Slurm ignores case here
        known |= {value} & {value for each in known if each.lower() == value.lower()}
    if known and value not in known and question.path not in FURTHER:
        best = question.best or next(iter(question.choices))
        raise UsageError(
            f"unknown {name} {value!r}",
            details=tuple(f"  {line}" for line in question.lines),
            fix=f"hpctrain init {question.option} {shell.quote(best)}",
        )
    return value


_HOUR = 3600


def answer_all(answers: Answers, found: SiteFacts) -> None:
    """Answer all questions except the one for the cluster, in an order in which each can use the
    answers before it.
    """
    for make in (_account, _partition, _constraint, _qos, _gpu_type, _gpus):
        question = make(found, answers)
        if question is not None:
            answers.ask(question)
    most, source = longest(found, answers)
    time = units.format_time(min(_HOUR, most or _HOUR))
    limit = f"at most {units.format_time(most)}: {source}" if most else "shorter jobs start sooner"
    answers.ask(
        ConfigQuestion(
            path=("resources", "nodes"), best="1", why="use more only if one is too small"
        )
    )
    answers.ask(ConfigQuestion(path=("resources", "time"), best=time, why=limit))
    if found.profile is None and found.live.job_requeue is False:
        answers.known["restart", "mode"] = Answer("chain", "JobRequeue=0: scontrol show config")
    _answer_environment(found, answers)
    for path, known in zip(FURTHER, (found.models, found.datasets), strict=True):
        answers.ask(
            ConfigQuestion(
                path=path,
                choices=dict.fromkeys(known, ""),
                best=known[0] if known else None,
                why="found here",
            )
        )


def cluster(detected: tuple[str, ...]) -> ConfigQuestion:
    """Return the question that selects the cluster among the profiles that match this machine."""
    return ConfigQuestion(
        path=("cluster",),
        text="Which cluster is this? Several profiles match.",
        choices=dict.fromkeys(detected, ""),
        needed=len(detected) > 1,
        best=detected[0] if detected else None,
        why="the profile matches this machine",
    )


def live_partition(found: SiteFacts, answers: Answers) -> LivePartition | None:
    """Return the chosen partition as Slurm reports it."""
    chosen = answers.value("resources", "partition")
    return found.live.partition(chosen) if chosen is not None else None


def nodes_of(found: SiteFacts, answers: Answers) -> LiveNodes | None:
    """Return the nodes that the job will most likely run on, as Slurm reports them."""
    partition, kind = live_partition(found, answers), answers.value("resources", "gpu_type")
    groups = partition.nodes if partition is not None else ()
    return typical([group for group in groups if kind is None or kind in dict(group.gpus)])


def describe(partition: LivePartition) -> str:
    """Return a one-line summary of a partition: GPUs, limits."""
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


def _account(found: SiteFacts, answers: Answers) -> ConfigQuestion:
    del answers
    live, policy = found.live, found.cluster.profile.account if found.cluster is not None else None
    if live.accounts:
        default = live.default_account if live.default_account in live.accounts else None
        why = "your default account" if default else "the first of yours"
        choices = {}
        for name in live.accounts:
            limits = [each.time_max for each in _associations(live, name) if each.time_max]
            limit = f"at most {units.format_time(min(limits))}" if limits else ""
            choices[name] = ", ".join(filter(None, ("default" * (name == default), limit)))
        return ConfigQuestion(
            path=("resources", "account"),
            text="Which account is charged?",
            needed=True,
            best=default or live.accounts[0],
            choices=choices,
            why=f"{'your only account' if len(live.accounts) == 1 else why}: sacctmgr",
        )
    required = policy is not None and bool(policy.required)
    command = (policy.list_command if policy is not None else None) or ACCOUNTS_COMMAND
    return ConfigQuestion(
        path=("resources", "account"),
        text=f"Which account is charged? List yours with: {command}",
        needed=required or (bool(live.enforces_accounts) and live.accounts is not None),
        why="not required",
    )


def _associations(live: LiveCluster, account: str | None) -> list[Association]:
    return [each for each in live.associations or () if each.account == account]


def usable(live: LiveCluster, account: str | None) -> tuple[LivePartition, ...]:
    """Return the partitions that an account may use: those with GPUs, the best first; all that are
    up if Slurm reports no GPUs.
    """
    rows = _associations(live, account)
    only = (
        {each.partition for each in rows} if rows and all(each.partition for each in rows) else None
    )
    known = gpu_partitions(live) or tuple(
        each for each in live.partitions or () if each.up is not False and each.nodes
    )
    return tuple(
        each
        for each in known
        if (each.allow_accounts is None or account is None or account in each.allow_accounts)
        and account not in each.deny_accounts
        and (only is None or each.name in only)
    )


def chosen_by_constraint(found: SiteFacts, answers: Answers) -> bool:
    """Whether the site selects partitions by constraint (IDRIS, NERSC), and none was named."""
    if found.profile is None or written(answers.given, ("resources", "partition")):
        return False
    profile = found.profile.profile
    by_constraint = any(shape.select.constraint for shape in profile.nodes.values())
    return by_constraint and not profile.partition_required and profile.defaults.partition is None


def _constraint(found: SiteFacts, answers: Answers) -> ConfigQuestion | None:
    """Return the constraint that selects nodes which the account can pay for, at sites that select
    nodes by constraint.
    """
    path: KeyPath = ("resources", "constraint")
    if written(answers.given, path):
        return ConfigQuestion(path=path)
    if found.profile is not None and chosen_by_constraint(found, answers):
        profile, account = found.profile.profile, answers.value("resources", "account")
        name = profile.shape_name(partition=None, account=account)
        wanted = profile.nodes[name].select.constraint if name is not None else None
        if name is not None and wanted is not None:
            source = found.profile.evidence("nodes", name, "select", "constraint")
            answers.known[path] = Answer(wanted, f"{name} nodes: {source}")
    return None


def _partition(found: SiteFacts, answers: Answers) -> ConfigQuestion | None:
    path: KeyPath = ("resources", "partition")
    if chosen_by_constraint(found, answers):
        return ConfigQuestion(path=path, why="none: the constraint chooses")
    if found.cluster is None:
        return None
    if found.live.partitions:
        kind = written(answers.given, ("resources", "gpu_type"))
        known = usable(found.live, answers.value("resources", "account"))
        of_kind = (each for each in known if any(kind in dict(group.gpus) for group in each.nodes))
        known = tuple(of_kind) or known
        choices = {each.name: describe(each) for each in known}
        why = "the only one with GPUs: sinfo" if len(known) == 1 else "with GPUs: sinfo"
    else:
        profile = found.cluster.profile
        choices = {
            name: units.format_time(each.time_max) if each.time_max else ""
            for name, each in profile.partitions.items()
            if each.nodes is not None and profile.nodes[each.nodes].gpus > 0
        }
        why = found.cluster.evidence("defaults", "partition")
    default = found.cluster.profile.defaults.partition
    return ConfigQuestion(
        path=path,
        text="Which partition?",
        choices=choices,
        best=default if default in choices else next(iter(choices), None),
        why=why,
        needed=len(choices) > 1,
    )


def qos_of(found: SiteFacts, answers: Answers) -> tuple[tuple[str, ...], str | None]:
    """Return the QOS that both the account and the partition allow, and the default one."""
    name = answers.value("resources", "partition")
    rows = _associations(found.live, answers.value("resources", "account"))
    rows = (
        [each for each in rows if each.partition == name]
        or [each for each in rows if each.partition is None]
        or rows
    )
    partition = live_partition(found, answers) or LivePartition(name="")
    names = dict.fromkeys(qos for row in rows for qos in row.qos)
    default = next((row.default_qos for row in rows if row.default_qos), None)
    return tuple(qos for qos in names if _takes(partition, qos)), default


def _takes(partition: LivePartition, qos: str) -> bool:
    allowed = partition.allow_qos is None or qos in partition.allow_qos
    return allowed and qos not in partition.deny_qos


def _qos(found: SiteFacts, answers: Answers) -> ConfigQuestion:
    """Return the question for a QOS, if the default would be refused or one is mandatory."""
    names, default = qos_of(found, answers)
    profile = found.cluster.profile if found.cluster is not None else None
    required = profile is not None and profile.qos_required
    if not names and required and profile is not None:
        names, default = tuple(profile.qos), profile.defaults.qos
    partition = live_partition(found, answers)
    refused = default is not None and partition is not None and not _takes(partition, default)
    if not (required or refused) or not names:
        return ConfigQuestion(path=("resources", "qos"), why="the default one")
    return ConfigQuestion(
        path=("resources", "qos"),
        text="Which QOS?",
        choices=dict.fromkeys(names, ""),
        needed=True,
        best=default if default in names else names[0],
        why="required by the partition" if refused else "required by the site",
    )


def _gpu_type(found: SiteFacts, answers: Answers) -> ConfigQuestion:
    """Return the question for a GPU type, if the partition has several: a job would get any mix of
    them. A single type needs no question.

    If the site has a profile, the profile decides whether a request has to name the only type.
    """
    partition = live_partition(found, answers)
    counts: dict[str, int] = {}
    for group in partition.nodes if partition is not None else ():
        for kind, count in group.gpus:
            counts[kind] = counts.get(kind, 0) + count * group.count
    by_count = sorted(
        (kind for kind in counts if kind), key=lambda kind: (is_slice(kind), -counts[kind])
    )
    one = len(by_count) == 1 and (found.profile is not None or "" in counts)
    if partition is None or not by_count or one:
        return ConfigQuestion(path=("resources", "gpu_type"), why="not required")
    why = "most of the whole GPUs" if len(by_count) > 1 else "the only type"
    return ConfigQuestion(
        path=("resources", "gpu_type"),
        text=f"Which GPUs? {partition.name} has several kinds.",
        needed=True,
        choices={kind: f"{counts[kind]} in all" for kind in by_count},
        best=by_count[0],
        why=f"{why}: sinfo -p {partition.name}",
    )


def is_slice(kind: str) -> bool:
    """Whether a GPU type is a MIG slice, such as `a100_1g.5gb`; slices of one GPU cannot
    communicate over NCCL.
    """
    return "g." in kind and kind.rpartition("g.")[0][-1:].isdigit()


def _gpus(found: SiteFacts, answers: Answers) -> ConfigQuestion:
    nodes, kind = nodes_of(found, answers), answers.value("resources", "gpu_type")
    partition = answers.value("resources", "partition")
    count, source = None, "one process per GPU"
    if nodes is not None and nodes.gpu_count:
        count = dict(nodes.gpus)[kind] if kind else nodes.gpu_count
        source = f"sinfo -p {partition}"
    elif found.cluster is not None:
        profile = found.cluster.profile
        name = profile.shape_name(
            partition=partition,
            constraint=answers.value("resources", "constraint"),
            account=answers.value("resources", "account"),
        )
        if name is not None and profile.nodes[name].gpus:
            count = profile.nodes[name].gpus
            source = found.cluster.evidence("nodes", name, "gpus")
    elif found.local_gpus:
        count, source = found.local_gpus, "of this machine"
    return ConfigQuestion(
        path=("resources", "gpus_per_node"),
        best=str(count or 1),
        why=f"all of a node: {source}" if count else source,
    )


def longest(found: SiteFacts, answers: Answers) -> tuple[int | None, str]:
    """Return the longest time that the partition, the account and the QOS allow, in seconds, and the limit's
    source.
    """
    name, account = answers.value("resources", "partition"), answers.value("resources", "account")
    if found.cluster is None or (name is None and not chosen_by_constraint(found, answers)):
        return None, ""
    limits: list[tuple[int, str]] = []
    part = found.cluster.profile.partitions.get(name or "")
    if name is not None and part is not None and part.time_max is not None:
        limits.append((part.time_max, found.cluster.evidence("partitions", name, "time_max")))
    for row in _associations(found.live, account):
        if row.partition in (None, name) and row.time_max is not None:
            limits.append((row.time_max, "sacctmgr show assoc"))
    qos = answers.value("resources", "qos") or qos_of(found, answers)[1]
    known = found.cluster.profile.qos.get(qos or "")
    if known is not None and known.time_max is not None:
        limits.append((known.time_max, found.cluster.evidence("qos", qos or "", "time_max")))
    return min(limits, key=lambda limit: limit[0], default=(None, ""))


def _answer_environment(found: SiteFacts, answers: Answers) -> None:
    """Choose the Python environment that the job activates: from an option, else the likeliest."""
    for path in (("environment", "venv"), ("environment", "conda")):
        if answers.ask(ConfigQuestion(path=path)) is not None:
            return
        del answers.known[path]
    likeliest = min(found.environments, key=lambda each: each.why != "active here", default=None)
    if likeliest is not None:
        answers.known["environment", likeliest.kind] = Answer(likeliest.value, likeliest.why)
