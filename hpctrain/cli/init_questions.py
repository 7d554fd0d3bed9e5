"""The questions of `hpctrain init`, made of what was found; each sees the answers before it. Prints and asks nothing itself."""

from __future__ import annotations

from hpctrain.cli.init_answers import Answers, Choice, Question
from hpctrain.cli.init_found import Found
from hpctrain.clusters.live import Association, LiveCluster, LiveNodes, LivePartition
from hpctrain.clusters.merge import ACCOUNTS_COMMAND, gpu_partitions, typical
from hpctrain.config.layers import written
from hpctrain.scheduler.parse import duration, memory_size

_HOUR = 3600


def answer_all(answers: Answers, found: Found) -> None:
    """Answer every question but the one for the cluster, in an order in which each can use those before."""
    for make in (_account, _partition, _constraint, _qos, _gpu_type, _gpus, _nodes, _time):
        question = make(found, answers)
        if question is not None:
            answers.ask(question)
    _environment(found, answers)
    answers.ask(_folder(("training", "model_name_or_path"), "--model", "Model folder?", found.models))
    answers.ask(_folder(("training", "dataset_name"), "--dataset", "Dataset folder, tokenised?", found.datasets))


def cluster(detected: tuple[str, ...]) -> Question:
    """Return the question which profile is meant, for a machine that several profiles take for theirs."""
    return Question(
        path=("cluster",), option="--cluster", text="Which cluster is this? Several profiles know it.",
        choices=tuple(Choice(name) for name in detected), needed=len(detected) > 1, best=detected[0] if detected else None,
        why="the profile knows this machine",
    )  # fmt: skip


def live_partition(found: Found, answers: Answers) -> LivePartition | None:
    """Return the chosen partition as Slurm shows it."""
    chosen = answers.value("resources", "partition")
    return found.live.partition(chosen) if found.live is not None and chosen is not None else None


def nodes_of(found: Found, answers: Answers) -> LiveNodes | None:
    """Return the nodes that the job most likely lands on, as Slurm shows them."""
    partition, kind = live_partition(found, answers), answers.value("resources", "gpu_type")
    groups = partition.nodes if partition is not None else ()
    return typical([group for group in groups if kind is None or kind in dict(group.gpus)])


def describe(partition: LivePartition) -> str:
    """Return what a person wants to know of a partition, in a line: GPUs, limits."""
    kinds = sorted({(kind or "GPU", count) for group in partition.nodes for kind, count in group.gpus}, key=lambda pair: -pair[1])
    parts = [" or ".join(f"{count} x {kind}" for kind, count in kinds[:4])] if kinds else ["no GPU"]
    parts += [duration.format(partition.time_max)] if partition.time_max else []
    parts += [f"{sum(group.count for group in partition.nodes)} nodes"]
    parts += [f"at most {partition.nodes_max} to a job"] if partition.nodes_max else []
    parts += ["whole nodes"] if partition.exclusive else []
    return ", ".join(parts)


def _account(found: Found, answers: Answers) -> Question | None:
    del answers
    live, account = found.live, found.cluster.profile.account if found.cluster is not None else None
    known = live.accounts if live is not None else None
    required = account is not None and bool(account.required)
    if not known:
        if not required and not (live is not None and live.enforces_accounts and known is not None):
            return Question(path=("resources", "account"), option="--account", text="Which account pays?", why="nobody asks for one")
        command = (account.list_command if account is not None else None) or ACCOUNTS_COMMAND
        return Question(path=("resources", "account"), option="--account", text=f"Which account pays? Yours are listed by: {command}",
                        needed=True, open=True)  # fmt: skip
    own = live.associations or () if live is not None else ()
    default = live.default_account if live is not None and live.default_account in known else None
    return Question(
        path=("resources", "account"), option="--account", text="Which account pays?", needed=True, best=default or known[0],
        choices=tuple(Choice(name, _restrictions(own, name, default)) for name in known),
        why=("your only account" if len(known) == 1 else "your default account" if default else "the first of yours") + ": sacctmgr",
    )  # fmt: skip


def _restrictions(own: tuple[Association, ...], account: str, default: str | None) -> str:
    rows = [each for each in own if each.account == account]
    parts = ["default"] if account == default else []
    if rows and all(each.partition for each in rows):
        parts.append(f"partition {', '.join(str(each.partition) for each in rows)}")
    limit = min((each.time_max for each in rows if each.time_max), default=None)
    return ", ".join(parts + ([f"at most {duration.format(limit)}"] if limit else []))


def usable(live: LiveCluster, account: str | None) -> tuple[LivePartition, ...]:
    """Return the partitions that an account may use: those with GPUs, the best first; all that are up where Slurm shows no GPU."""
    rows = [each for each in live.associations or () if each.account == account]
    only = {each.partition for each in rows} if rows and all(each.partition for each in rows) else None
    known = gpu_partitions(live) or tuple(each for each in live.partitions or () if each.up is not False and each.nodes)
    return tuple(
        each for each in known
        if (each.allow_accounts is None or account is None or account in each.allow_accounts)
        and account not in each.deny_accounts
        and (only is None or each.name in only)
    )  # fmt: skip


def chosen_by_constraint(found: Found, answers: Answers) -> bool:
    """Whether the site finds the partition by the constraint (IDRIS, NERSC), and nobody has named one."""
    if found.profile is None or written(answers.given, ("resources", "partition")):
        return False
    profile = found.profile.profile
    by_constraint = any(shape.select.constraint for shape in profile.nodes.values())
    return by_constraint and not profile.partition_required and profile.defaults.partition is None


def _constraint(found: Found, answers: Answers) -> Question | None:
    """Return the constraint that leads to the nodes which the account pays for, where the constraint chooses the nodes."""
    asked = Question(path=("resources", "constraint"), option="--constraint", text="Which constraint?", open=True)
    if written(answers.given, asked.path):
        answers.ask(asked)
    elif found.profile is not None and chosen_by_constraint(found, answers):
        name = found.profile.profile.shape_name(partition=None, account=answers.value("resources", "account"))
        wanted = found.profile.profile.nodes[name].select.constraint if name is not None else None
        if name is not None and wanted is not None:
            answers.put(asked.path, wanted, f"{name} nodes: {found.profile.evidence('nodes', name, 'select', 'constraint')}")
    return None


def _partition(found: Found, answers: Answers) -> Question | None:
    if chosen_by_constraint(found, answers):
        return Question(path=("resources", "partition"), option="--partition", text="Which partition?", why="none: the constraint chooses")
    chosen = found.cluster.profile.defaults.partition if found.cluster is not None else None
    if found.live is not None and found.live.partitions:
        known = usable(found.live, answers.value("resources", "account"))
        choices = tuple(Choice(each.name, describe(each)) for each in known)
        why = "the only one with GPUs: sinfo" if len(known) == 1 else "with GPUs: sinfo"
    elif found.cluster is not None:
        profile = found.cluster.profile
        choices = tuple(
            Choice(name, duration.format(each.time_max) if each.time_max else "")
            for name, each in profile.partitions.items()
            if each.nodes is not None and profile.nodes[each.nodes].gpus > 0
        )
        why = found.cluster.evidence("defaults", "partition")
    else:
        return None
    names = [choice.value for choice in choices]
    best = chosen if chosen in names else names[0] if names else None
    return Question(
        path=("resources", "partition"), option="--partition", text="Which partition?", choices=choices, best=best, why=why,
        needed=len(names) > 1,
    )  # fmt: skip


def qos_of(found: Found, answers: Answers) -> tuple[tuple[str, ...], str | None]:
    """Return the QOS that the account has and the partition takes, and the default one."""
    account, name = answers.value("resources", "account"), answers.value("resources", "partition")
    rows = [each for each in (found.live.associations if found.live is not None else None) or () if each.account == account]
    rows = [each for each in rows if each.partition == name] or [each for each in rows if each.partition is None] or rows
    partition = live_partition(found, answers)
    allowed, denied = (partition.allow_qos, partition.deny_qos) if partition is not None else (None, ())
    names = tuple(dict.fromkeys(qos for row in rows for qos in row.qos if (allowed is None or qos in allowed) and qos not in denied))
    default = next((row.default_qos for row in rows if row.default_qos), None)
    return names, default


def _qos(found: Found, answers: Answers) -> Question | None:
    """Return the question for a QOS, where the default one would be refused or there must be one in the script."""
    names, default = qos_of(found, answers)
    profile = found.cluster.profile if found.cluster is not None else None
    required = profile is not None and profile.qos_required
    if not names and required and profile is not None:
        names = tuple(profile.qos)
        default = profile.defaults.qos
    partition = live_partition(found, answers)
    refused = default is not None and partition is not None and partition.allow_qos is not None and default not in partition.allow_qos
    if not (required or refused) or not names:
        return Question(path=("resources", "qos"), option="--qos", text="Which QOS?", why="the default one")
    return Question(
        path=("resources", "qos"), option="--qos", text="Which QOS?", choices=tuple(Choice(name) for name in names), needed=True,
        best=default if default in names else names[0], why="the partition wants one of these" if refused else "the site wants one",
    )  # fmt: skip


def _gpu_type(found: Found, answers: Answers) -> Question | None:
    """Return the question for a GPU type, where the nodes of the partition have several: a job would get any mix of them."""
    partition = live_partition(found, answers)
    counts: dict[str, int] = {}
    for group in partition.nodes if partition is not None else ():
        for kind, count in group.gpus:
            if kind:
                counts[kind] = counts.get(kind, 0) + count * group.count
    if len(counts) < 2 or partition is None:
        return None
    by_count = sorted(counts, key=lambda kind: (is_slice(kind), -counts[kind]))
    return Question(
        path=("resources", "gpu_type"), option="--gpu-type", text=f"Which GPUs? {partition.name} has several kinds.", needed=True,
        choices=tuple(Choice(kind, f"{counts[kind]} in all") for kind in by_count), best=by_count[0],
        why=f"of whole GPUs the most: sinfo -p {partition.name}",
    )  # fmt: skip


def is_slice(kind: str) -> bool:
    """Whether a GPU type is a slice by MIG, such as `a100_1g.5gb`; slices of one GPU cannot train together over NCCL."""
    return "g." in kind and kind.rpartition("g.")[0][-1:].isdigit()


def _gpus(found: Found, answers: Answers) -> Question | None:
    nodes, kind = nodes_of(found, answers), answers.value("resources", "gpu_type")
    partition = answers.value("resources", "partition")
    count: int | None = None
    why = "one process to a GPU"
    if nodes is not None and nodes.gpu_count:
        count = dict(nodes.gpus)[kind] if kind else nodes.gpu_count
        why = f"all of a node: sinfo -p {partition}"
    elif found.cluster is not None:
        profile = found.cluster.profile
        name = profile.shape_name(
            partition=partition, constraint=answers.value("resources", "constraint"), account=answers.value("resources", "account")
        )
        if name is not None and profile.nodes[name].gpus:
            count, why = profile.nodes[name].gpus, f"all of a node: {found.cluster.evidence('nodes', name, 'gpus')}"
    elif found.local_gpus:
        count, why = found.local_gpus, "all that this machine has"
    most = count

    def limit(value: str) -> str | None:
        return f"a node has {most} GPUs ({why.partition(': ')[2] or why})" if most is not None and int(value) > most else None

    upto = f" (1 to {count})" if count else ""
    text, best = f"GPUs of each node{upto}?", str(count or 1)
    return Question(path=("resources", "gpus_per_node"), option="--gpus", text=text, open=True, best=best, why=why, limit=limit)


def _nodes(found: Found, answers: Answers) -> Question | None:
    partition, why = answers.value("resources", "partition"), "more only when one is too small"
    live, profile = live_partition(found, answers), found.cluster.profile if found.cluster is not None else None
    most = None
    if live is not None and live.nodes:
        most = min(sum(group.count for group in live.nodes), live.nodes_max or 1_000_000)
        why = f"of {most}: sinfo -p {partition}"
    elif profile is not None and partition in profile.partitions:
        most = profile.partitions[partition].nodes_max

    def limit(value: str) -> str | None:
        return f"a job in {partition} can have {most} at most" if most is not None and int(value) > most else None

    upto = f" (1 to {most})" if most else ""
    return Question(path=("resources", "nodes"), option="--nodes", text=f"Nodes{upto}?", open=True, best="1", why=why, limit=limit)


def longest(found: Found, answers: Answers) -> tuple[int | None, str]:
    """Return the longest time that a job of these answers can ask for, in seconds, and who says so."""
    name, account = answers.value("resources", "partition"), answers.value("resources", "account")
    if found.cluster is None or (name is None and not chosen_by_constraint(found, answers)):
        return None, ""
    limits: list[tuple[int, str]] = []
    part = found.cluster.profile.partitions.get(name or "")
    if name is not None and part is not None and part.time_max is not None:
        limits.append((part.time_max, found.cluster.evidence("partitions", name, "time_max")))
    for row in (found.live.associations if found.live is not None else None) or ():
        if row.account == account and row.partition in (None, name) and row.time_max is not None:
            limits.append((row.time_max, "sacctmgr show assoc"))
    qos = answers.value("resources", "qos") or qos_of(found, answers)[1]
    known = found.cluster.profile.qos.get(qos or "")
    if known is not None and known.time_max is not None:
        if known.lifts_partition_time:
            limits = limits[1:] if part is not None and part.time_max is not None else limits
        limits.append((known.time_max, found.cluster.evidence("qos", qos or "", "time_max")))
    return min(limits, key=lambda limit: limit[0], default=(None, ""))


def _time(found: Found, answers: Answers) -> Question | None:
    most, source = longest(found, answers)

    def limit(value: str) -> str | None:
        seconds = duration.parse(value)
        over = most is not None and seconds is not None and seconds > most
        return f"at most {duration.format(most or 0)} ({source})" if over else None

    upto = f" (at most {duration.format(most)})" if most else ""
    best = duration.format(min(_HOUR, most or _HOUR))
    why = f"at most {duration.format(most)}: {source}" if most else "shorter jobs start sooner"
    return Question(path=("resources", "time"), option="--time", text=f"Time limit{upto}?", open=True, best=best, why=why, limit=limit)


def _environment(found: Found, answers: Answers) -> None:
    """Answer which Python environment the job activates; what is active here is what its owner means."""
    for kind in ("venv", "conda"):
        if answers.ask(Question(path=("environment", kind), option=f"--{kind}", text="")) is not None:
            return
    known = found.environments
    if not known:
        return
    active = [each for each in known if each.why == "active here"]
    chosen = active[0] if len(active) == 1 else known[0]
    if len(active) > 1 and answers.mode == "ask":
        named = {each.value: each for each in active}
        question = Question(path=("environment", "venv"), option="--venv", text="Several environments are active. Which one?", needed=True,
                            choices=tuple(Choice(each.value, each.kind) for each in active), best=chosen.value, why=chosen.why)  # fmt: skip
        chosen = named[answers.ask(question) or chosen.value]
    for kind in ("venv", "conda"):
        answers.known.pop(("environment", kind), None)
    answers.put(("environment", chosen.kind), chosen.value, chosen.why)


def _folder(path: tuple[str, str], option: str, text: str, known: tuple[str, ...]) -> Question:
    return Question(
        path=path, option=option, text=text, choices=tuple(Choice(name) for name in known), open=True,
        best=known[0] if known else None, why="found here" if known else "",
    )  # fmt: skip


def gib(size: int) -> str:
    """Return a size as people write it in a config."""
    return memory_size.format(size // 1024**3 * 1024**3 or size)
