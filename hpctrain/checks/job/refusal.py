"""Slurm's refusal of a script: its message verbatim, the config.yaml key that it is about, and the
finding.

Pure. Sources: src/common/slurm_errno.c for Slurm's messages; a site's own (job_submit.lua, sbatch
wrappers) can be anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpctrain.checks.job.context import Case
from hpctrain.config.fields import BY_PATH
from hpctrain.finding import LEVELS, Finding
from hpctrain.slurm.notations import units
from hpctrain.util.schema import KeyPath

Change = tuple[KeyPath, str]

_RESTART = ("restart", "mode")
_ACCOUNT, _TIME, _TYPE = ("resources", "account"), ("resources", "time"), ("resources", "gpu_type")
_LIMITS = "sinfo -o '%P %l %D'"
_NODES = "sinfo -o '%P %D %c %m %f %G'"
_MINE = "sacctmgr -nP show associations user=$USER format=account,partition,qos"
#: Slurm's message → its meaning, the command that lists valid values, and the findings about the
#: same problem.
_MEANINGS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        r"Invalid account|account not permitted",
        (
            "the account is misspelled, not yours, lacks its suffix, or is not accepted by "
            "this partition or QOS (--account)"
        ),
        _MINE,
        ("account-",),
    ),
    (
        r"AssocMaxSubmitJobLimit|violates accounting/QOS policy",
        "no account is given, or you may have no more jobs in the queue",
        _MINE,
        ("account-", "array-limit", "gpus-limit", "nodes-limit", "qos-"),
    ),
    (
        r"Requested time limit is invalid|TimeLimit|MaxWallDuration",
        "the time is longer than the partition or the QOS allows, or is missing (--time)",
        _LIMITS,
        ("time-",),
    ),
    (
        r"invalid partition",
        "the partition's name comes from another cluster, or is misspelled (--partition)",
        _LIMITS,
        ("partition-",),
    ),
    (
        r"group not permitted",
        "the partition is for other groups (--partition)",
        _LIMITS,
        ("partition-",),
    ),
    (
        r"Invalid qos",
        "the QOS is missing, misspelled, or not one of your account's (--qos)",
        _MINE,
        ("qos-",),
    ),
    (
        r"Invalid feature",
        "the constraint names a feature that no node of the partition has (--constraint)",
        _NODES,
        ("constraint-",),
    ),
    (
        r"Memory specification",
        "more memory is requested than a node has (--mem)",
        _NODES,
        ("memory-", "node-share"),
    ),
    (
        r"CPU count|More processors",
        "more cores are requested than a node has (--cpus-per-task)",
        _NODES,
        ("cores-", "nodes-limit"),
    ),
    (
        r"Node count specification",
        "more, or fewer, nodes than the partition or the QOS allows (--nodes)",
        _LIMITS,
        ("nodes-limit",),
    ),
    (
        r"Requested node configuration is not available|BadConstraints",
        "no node has so many GPUs, cores or so much memory, or that constraint",
        _NODES,
        ("gpus-per-node", "gpu-type-", "cores-limit", "memory-limit", "nodes-limit", "constraint-"),
    ),
    (
        r"Invalid generic resource",
        "GPUs are called something else here, or have no such type (--gpu-type)",
        _NODES,
        ("gpu-",),
    ),
    (
        r"reservation",
        "the reservation does not exist, is over, or is not for you (--reservation)",
        "scontrol show reservations",
        (),
    ),
    (
        r"job array",
        "the array has more tasks than Slurm accepts (--array)",
        "scontrol show config",
        ("array-limit",),
    ),
)
#: sbatch's prefix of Slurm's message, which follows the message of a site's policy.
_OWN = re.compile(r"(?:allocation failure|Batch job submission failed): (?P<words>.*)")
#: Messages that Slurm adds to a policy's own.
_EMPTY = frozenset({"Unspecified error", "error", ""})

_A_TYPE = re.compile(
    r"\bgpu:(?P<gres>[a-z][\w.-]*)|--gpus(?:-per-node|-per-task)?[= ](?P<gpus>[a-z][\w.-]*):",
    re.IGNORECASE,
)
_OF_TYPE = re.compile(
    r"\b(?:gpu|gres)s?\W+(?:\w+\W+){0,2}?(?:type|model)|\b(?:type|kind|model)s? of (?:the )?gpu",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"(?:--(?P<long>partition|qos|constraint|account|reservation)[="
    r" ]|(?<![\w-])-(?P<short>[pqCA])[= ]?)['\"]?(?P<value>[\w.@&-]+)"
)
_SHORT = {"p": "partition", "q": "qos", "C": "constraint", "A": "account"}
_PROJECT = re.compile(r"\b(?:account|project)s?\b|(?<![\w-])-A\b", re.IGNORECASE)
_LIMIT = re.compile(
    r"(?<![\w-])-t\b|\b(?:time[ _-]?limit|wall[ _-]?(?:clock)?[ _-]?time|run[ _-]?time|--time)",
    re.IGNORECASE,
)
_DURATION = re.compile(r"\b(?:\d+-)?\d{1,3}:\d\d:\d\d\b")
#: Placeholders: --account=<project>, -A PROJECT, gpu:type:N.
_STANDS_FOR = re.compile(
    r"[A-Z][A-Z_-]*|(?:your|my)[_-].*|x+|(?:name|account|project|type|model|gpu_?type|partition|qos|n|count)s?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal.

    Attributes:
        words: sbatch's message, by line.
        changes: the config.yaml keys and values that it calls for; empty if it names no key of
            hpctrain.
    """

    words: tuple[str, ...]
    changes: tuple[Change, ...] = ()


def words(details: Sequence[str]) -> tuple[str, ...]:
    """Return sbatch's message from the lines of an error, without an uninformative last line of
    Slurm.
    """
    said = [line.partition(" said: ")[2].strip() for line in details if " said: " in line]
    kept = [
        line
        for line in said
        if (own := _OWN.search(line)) is None or own["words"].strip() not in _EMPTY
    ]
    return tuple(line for line in kept or said if line) or ("nothing",)


def changes(said: Sequence[str], case: Case) -> tuple[Change, ...]:
    """Return the config.yaml keys and values that a site's message calls for: `--gres=gpu:a100:N`
    is `gpu_type: a100`.

    A guess, which the caller lets Slurm validate before it is shown. Slurm's own messages are not
    used: they name no option, and are ambiguous.
    """
    text = "\n".join(line for line in said if not _OWN.search(line))
    found: dict[KeyPath, str] = {}
    for path, value in (
        *_gpus(text, case),
        *_named(text, case),
        *_restart(text, case),
        *_project(text, case),
        *_time(text, case),
    ):
        found.setdefault(path, value)
    return tuple(found.items())


def _gpus(text: str, case: Case) -> Iterator[Change]:
    live: Counter[str] = Counter()
    for group in case.live_nodes:
        live.update({kind: count * group.count for kind, count in group.gpus if kind})
    named = [
        name
        for each in _A_TYPE.finditer(text)
        if not _STANDS_FOR.fullmatch(name := each["gres"] or each["gpus"])
    ]
    known = [name for name in named if not live or name in live]
    if (named and not known) or (
        not named and not _A_TYPE.search(text) and not _OF_TYPE.search(text)
    ):
        return
    most = max(live, key=lambda kind: live[kind], default=None)
    wanted = known[0] if known else most
    if wanted is not None and case.spec.gpu_type not in (wanted, *known):
        yield _TYPE, wanted
    elif known and "--gres" in text and case.spec.gpu_directive != "gres":
        yield ("resources", "gpu_directive"), "gres"


def _named(text: str, case: Case) -> Iterator[Change]:
    known = {
        "partition": tuple(each.name for each in case.partitions) or None,
        "qos": tuple(each.name for each in case.slurm.qos or ()) or None,
        "account": case.slurm.accounts,
    }
    for each in _VALUE.finditer(text):
        name, value = each["long"] or _SHORT[each["short"]], each["value"].rstrip(".")
        there = known.get(name)
        if (
            not _STANDS_FOR.fullmatch(value)
            and value != getattr(case.spec, name)
            and (value in there if there is not None else each["long"])
        ):
            yield ("resources", name), value


def _restart(text: str, case: Case) -> Iterator[Change]:
    if case.spec.restart == "requeue" and re.search("requeue", text, re.IGNORECASE):
        yield _RESTART, "chain"


def _project(text: str, case: Case) -> Iterator[Change]:
    mine, default = case.slurm.accounts or (), case.slurm.default_account
    if case.spec.account is None and _PROJECT.search(text):
        # With several accounts, the user must choose which one is charged.
        if default is not None and default in mine:
            yield _ACCOUNT, default
        elif len(mine) == 1:
            yield _ACCOUNT, mine[0]


def _time(text: str, case: Case) -> Iterator[Change]:
    if not _LIMIT.search(text):
        return
    named = [units.parse_time(each) or 0 for each in _DURATION.findall(text)]
    most = min(
        [
            each
            for each in (
                *named,
                case.live_partition.time_max if case.live_partition is not None else None,
            )
            if each
        ],
        default=None,
    )
    if case.spec.time_s is None:
        yield _TIME, units.format_time(min(3600, most or 3600))
    elif named and most is not None and case.spec.time_s > most:
        yield _TIME, units.format_time(most)


def told(
    found: Sequence[Finding],
    case: Case,
    refusals: Sequence[Refusal],
    *,
    taken: bool,
    verb: str = "render",
) -> list[Finding]:
    """Return the findings with Slurm's refusals added, errors first; a problem that a finding
    already reports is merged into it.

    Args:
        found: the rules' findings.
        case: the job.
        refusals: in Slurm's order, each made with the changes of the previous ones applied.
        taken: whether Slurm accepts the job with all changes.
        verb: the subcommand of suggested commands.
    """
    everything = [change for each in refusals for change in each.changes]
    command = case.command(
        *((BY_PATH[path].option, value) for path, value in everything), verb=verb
    )
    merged = list(found)
    for number, each in enumerate(refusals):
        said = f"sbatch --test-only: {' / '.join(each.words)}"
        meaning, listing, ids = _meaning(each)
        same = next(
            (
                one
                for level in LEVELS
                for one in merged
                if one.level == level and ids and one.id.startswith(ids)
            ),
            None,
        )
        if same is not None:
            said = f"{same.evidence}; {said}"
            merged[merged.index(same)] = replace(
                same, level="error", evidence=said, fix=command if each.changes else same.fix
            )
            continue
        own, reason = case.slurm.accounts, meaning
        if each.changes:
            reason = f"in config.yaml, that is {' and '.join(map(_key, each.changes))}"
            reason += "; Slurm accepts the job with the fix" if taken else ""
        elif own and case.spec.account is None and _PROJECT.search(" ".join(each.words)):
            accounts = ", ".join(own)
            reason += f"; the key of an account is resources.account, and yours are {accounts}"
        merged.append(
            case.finding(
                "slurm-refuses",
                "error",
                "with that changed, Slurm refuses the job again"
                if number
                else "Slurm refuses the job",
                evidence=said,
                reason=reason,
                fix=command if each.changes else listing or f"follow this message, then: {command}",
            )
        )
    return sorted(merged, key=lambda finding: LEVELS.index(finding.level))


def _meaning(refusal: Refusal) -> tuple[str, str | None, tuple[str, ...]]:
    """Return the reason for the refusal, the command that lists valid values, and the id prefixes
    of findings on the same problem.
    """
    if refusal.changes:
        topics: dict[KeyPath, str] = {_ACCOUNT: "account-", _TIME: "time-", _TYPE: "gpu-type-"}
        topic = topics.get(refusal.changes[0][0]) if len(refusal.changes) == 1 else None
        return "", None, (topic,) if topic else ()
    found = [_OWN.search(line) for line in refusal.words]
    own = [match["words"] for match in found if match is not None]
    rows = (row for row in _MEANINGS if own and re.search(row[0], own[-1], re.IGNORECASE))
    _, meaning, listing, ids = next(rows, ("", "", None, ()))
    if None in found:
        return "this is the site's own message; no key of config.yaml matches it", None, ids
    return f"likely {meaning}" if meaning else "Slurm gives no other reason", listing, ids


def _key(change: Change) -> str:
    path, value = change
    return (
        f"`restart: {{mode: {value}}}`"
        if path == _RESTART
        else f"`{path[-1]}: {value}` under {path[0]}"
    )


def estimate(said: str) -> str | None:
    """Return Slurm's message with the estimated start: `Job 12 to start at 2026-…`; None if there
    is none.
    """
    found = re.search(r"Job \S+ to start at [^\n]*", said)
    return found[0].strip() if found is not None else None
