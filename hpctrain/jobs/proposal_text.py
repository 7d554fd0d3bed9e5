"""Render the config.yaml that `hpctrain init` writes: each value with a comment on its source."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence

from hpctrain.config.layers import written
from hpctrain.config.profile_layer import cluster_layer
from hpctrain.jobs.proposal import (
    Answers,
    SiteFacts,
    chosen_by_constraint,
    describe,
    live_partition,
    nodes_of,
    qos_of,
    usable,
)
from hpctrain.slurm.notations import units
from hpctrain.util.schema import KeyPath

_COLUMN = 32
_WIDTH = 80
#: The longest code, in characters, that leaves room for a comment after it.
_LONG = 46
#: The source after the level of evidence: `hpctrain clusters show NAME` prints it, once for all
#: values.
_SOURCE = re.compile(r"(?<=: )(documented|reported|seen|recalled), [^;]*")
#: Values that neither YAML nor a reader can mistake for anything but text; all others are quoted.
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+=-]*(:[A-Za-z0-9_./@+=-]+)*\Z")
_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off"})


def text(found: SiteFacts, answers: Answers) -> str:
    """Return the complete file."""
    parts = [
        _head(found),
        _cluster(found),
        "job_name: sft",
        _line("launcher: accelerate", "or torchrun, or srun: one task per GPU"),
        "",
    ]
    parts += ["resources:", *_resources(found, answers), ""]
    if restart := _answer(answers, "restart", "mode"):
        parts += ["restart:", *restart, ""]
    parts += ["environment:", *_environment(found, answers), "", *_training(answers)]
    return "\n".join(part.rstrip() for part in parts) + "\n"


def _head(found: SiteFacts) -> str:
    live = found.live
    on = f" for {live.cluster_name or 'this cluster'}" if found.has_slurm else ""
    version = f" (Slurm {live.version[0]}.{live.version[1]:02})" if live.version else ""
    return _comment(
        f"Job config{on}{version}, created by `hpctrain init`. Comments name the source of each"
        " value.",
        "Options (hpctrain render --nodes 2) and HPCTRAIN_* variables (HPCTRAIN_ACCOUNT=proj_a)"
        " override it.",
    )


def _cluster(found: SiteFacts) -> str:
    if found.profile is not None:
        name = found.profile.profile.name
        return "\n".join(
            ["", _line(f"cluster: {name}", f"sources: hpctrain clusters show {name}"), ""]
        )
    note = "no profile for this site" if found.has_slurm else "cluster profile"
    return "\n".join(["", _line("# cluster: NAME", f"{note}; list: hpctrain clusters"), ""])


def _resources(found: SiteFacts, answers: Answers) -> Iterator[str]:
    for name in ("nodes", "gpus_per_node", "time"):
        yield from _answer(answers, "resources", name)
    yield from _partition(found, answers)
    yield from _answer(answers, "resources", "constraint")
    yield from _account(found, answers)
    yield from _qos(found, answers)
    yield from _answer(answers, "resources", "gpu_type")
    yield from derived(found, answers)


def _partition(found: SiteFacts, answers: Answers) -> Iterator[str]:
    chosen = answers.value("resources", "partition")
    if chosen is None:
        by_constraint = chosen_by_constraint(found, answers)
        yield _line(
            "  # partition: NAME",
            ("none: the constraint chooses" if by_constraint else "the site's default"),
        )
        return
    live = live_partition(found, answers)
    why = answers.known["resources", "partition"].why
    yield _line(
        f"  partition: {scalar(chosen)}", f"{describe(live)}; {why}" if live is not None else why
    )
    others = usable(found.live, answers.value("resources", "account"))
    shown = [f"{_clean(each.name):<20} {describe(each)}" for each in others if each.name != chosen]
    yield from ["  # others:"] if shown else []
    for each in shown[:20]:
        yield from textwrap.wrap(
            _clean(each),
            _WIDTH,
            initial_indent="  #   partition: ",
            subsequent_indent=f"  #{'':<8}",
        )


def _account(found: SiteFacts, answers: Answers) -> Iterator[str]:
    chosen = answers.value("resources", "account")
    if chosen is None:
        command = found.cluster.profile.account.list_command if found.cluster is not None else None
        yield _line(
            "  # account: my_project",
            f"account to charge; list: {command}" if command else "account to charge",
        )
        return
    yield _line(f"  account: {scalar(chosen)}", answers.known["resources", "account"].why)
    others = [name for name in found.live.accounts or () if name != chosen.lower()]
    yield from _listed("others of yours", others)


def _qos(found: SiteFacts, answers: Answers) -> Iterator[str]:
    names, default = qos_of(found, answers)
    word = default or (names[0] if names else "normal")
    instead = _line(f"  # qos: {scalar(word)}", "the default one" if default == word else "")
    yield from _answer(answers, "resources", "qos") or [instead]
    yield from _listed("yours", names if len(names) > 1 else ())


def derived(found: SiteFacts, answers: Answers) -> Iterator[str]:
    """Yield the lines that follow from the answers: as a comment if the profile supplies the value
    at every `render`, as a value if only Slurm does.
    """
    cluster, answered = found.cluster, [answers.layer()]
    merged = cluster_layer(cluster, answered) if cluster is not None else None
    by_profile = cluster_layer(found.profile, answered) if found.profile is not None else None
    for name in ("gpu_directive", "cpus_per_gpu", "mem", "constraint"):
        path: KeyPath = ("resources", name)
        value = written([merged], path) if merged is not None else None
        if answers.value(*path) is not None:
            continue  # already written
        if merged is None or value is None:
            if name == "mem":
                yield _line("  # mem: 64G", "per node; 0 requests all of it")
            continue
        value, why = _tighter(found, answers, name, str(value), merged.origins.get(path, ""))
        if by_profile is not None and value == written([by_profile], path):
            yield _line(f"  # {name}: {scalar(value)}", why)
        elif name == "mem" and value != "0":
            # Per GPU, so that a job with fewer GPUs takes only their share of a shared node.
            gpus = int(answers.value("resources", "gpus_per_node") or 1)
            share = units.round_memory_down(units.parse_memory(value) // gpus)
            yield _line(f"  mem_per_gpu: {share}", why)
        else:
            yield _line(f"  {name}: {scalar(value)}", why)


def _tighter(
    found: SiteFacts, answers: Answers, name: str, value: str, why: str
) -> tuple[str, str]:
    """Return a derived value within the limits of the nodes and the partition, and its source."""
    nodes, partition = nodes_of(found, answers), live_partition(found, answers)
    if partition is None or nodes is None or not nodes.gpu_count:
        return value, why
    if name == "cpus_per_gpu" and nodes.cpus:
        value = str(max(1, min(int(value), nodes.cpus // nodes.gpu_count)))
        why = f"{nodes.cpus} CPUs for {nodes.gpu_count} GPUs: sinfo -p {partition.name}"
    if name == "mem" and nodes.memory:
        most = min(nodes.memory, partition.memory_max_per_node or nodes.memory)
        share = most * int(answers.value("resources", "gpus_per_node") or 1) // nodes.gpu_count
        whole = value == "0" and most == nodes.memory
        if not whole and not 0 < units.parse_memory(value) <= share:
            value = units.format_memory(share)
        why = f"{nodes.memory >> 30}G for {nodes.gpu_count} GPUs: sinfo -p {partition.name}"
        if most < nodes.memory:
            why = f"MaxMemPerNode: scontrol show partition {partition.name}"
    return value, why


def _environment(found: SiteFacts, answers: Answers) -> Iterator[str]:
    modules = found.cluster.profile.modules if found.cluster is not None else None
    suggested = ", ".join(modules.suggested) if modules is not None else ""
    source = (
        f"users of this cluster load: {found.cluster.evidence('modules', 'suggested')}"
        if suggested and found.cluster
        else ""
    )
    yield _line(
        f"  # modules: [{suggested or 'cuda/12.2'}]",
        source or "loaded on the compute node, in this order",
    )
    chosen = [path for path in answers.known if path[0] == "environment"]
    lines = [line for path in chosen for line in _answer(answers, *path)]
    instead = _line("  # venv: .venv", "no environment found; or conda: NAME, uv: DIR, pixi: DIR")
    yield from lines or [instead]
    values = {answers.value(*path) for path in chosen}
    others = [
        f"{each.kind}: {each.value}" for each in found.environments if each.value not in values
    ]
    yield from _listed("others", others)


def _training(answers: Answers) -> Iterator[str]:
    yield _line("# script: train.py", "Default: the built-in training")
    yield _line("training:", "arguments of the script, as --key value")
    for name, hint in (
        ("model_name_or_path", "models/my_model"),
        ("dataset_name", "data/my_dataset"),
    ):
        what = "a model" if name.startswith("model") else "a tokenized dataset"
        yield from _answer(answers, "training", name) or (
            f"  # directory of {what}; or: hpctrain prepare --demo demo",
            f"  # {name}: {hint}",
        )
    yield "  # max_steps: 1000"


def _answer(answers: Answers, *path: str) -> list[str]:
    answer = answers.known.get(path)
    if answer is None or answer.value is None:
        return []
    indent = "  " * (len(path) - 1)
    return [_line(f"{indent}{path[-1]}: {scalar(answer.value)}", answer.why)]


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
    """Return a line with its comment after it, in one column; a long comment continues below, or is
    above a long line.
    """
    why = _clean(_SOURCE.sub(r"\1", why)).strip()
    if not why:
        return code
    if len(code) > _LONG:
        indent = " " * (len(code) - len(code.lstrip()))
        return "\n".join([*(f"{indent}# {line}" for line in textwrap.wrap(why, _WIDTH - 4)), code])
    start = f"{code:<{_COLUMN - 1}} # "
    return textwrap.fill(
        why,
        max(_WIDTH, len(start) + 30),
        initial_indent=start,
        subsequent_indent=f"{'':<{_COLUMN - 1}} # ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _listed(title: str, words: Sequence[str]) -> Iterator[str]:
    if words:
        text = _clean(f"{title}: {', '.join(words)}")
        yield from (f"  # {line}" for line in textwrap.wrap(text, _WIDTH - 4))


def _comment(*lines: str) -> str:
    return "\n".join(
        f"# {part}" for line in lines for part in textwrap.wrap(_clean(line), _WIDTH - 2)
    )


def _clean(words: str) -> str:
    """Return `words` on one line without control characters, which would end the comment and start
    a key.
    """
    return "".join(character if character.isprintable() else " " for character in words)
