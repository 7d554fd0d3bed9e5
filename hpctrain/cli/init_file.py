"""The config.yaml that `hpctrain init` writes: each value with the words that say where it comes from. Makes text, and nothing else."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hpctrain.cli.init_answers import Answers
from hpctrain.cli.init_found import Found
from hpctrain.cli.init_questions import chosen_by_constraint, describe, gib, live_partition, nodes_of, qos_of, usable
from hpctrain.config import cluster_layer
from hpctrain.config.layers import KeyPath, written
from hpctrain.scheduler.parse import duration, memory_size

if TYPE_CHECKING:
    from hpctrain.clusters.profile import Cluster

_COLUMN = 32
_WIDTH = 80
#: Of code: behind longer one there is no room for words.
_LONG = 46
#: What stands behind the level of evidence: `hpctrain clusters show NAME` says it, once for all values.
_SOURCE = re.compile(r"(?<=: )(documented|reported|seen|recalled), [^;]*")
#: Words that YAML or a reader would not take for the text that they are are quoted.
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+=-]*(:[A-Za-z0-9_./@+=-]+)*\Z")
_NOT_TEXT = frozenset({"null", "true", "false", "yes", "no", "on", "off"})


def text(found: Found, answers: Answers) -> str:
    """Return the whole file."""
    parts = [_head(found), _cluster(found), "job_name: sft", _line("launcher: accelerate", "or torchrun, or srun: one task per GPU"), ""]
    parts += ["resources:", *_resources(found, answers), ""]
    parts += ["environment:", *_environment(found, answers), "", *_training(answers)]
    return "\n".join(part.rstrip() for part in parts) + "\n"


def _head(found: Found) -> str:
    live = found.live
    on = f" for {live.cluster_name or 'this cluster'}" if live is not None else ""
    version = f" (Slurm {live.version[0]}.{live.version[1]:02})" if live is not None and live.version is not None else ""
    return _comment(
        f"The job config{on}{version}, made by `hpctrain init`. The words behind a value say where it comes from.",
        "Options win over these values (hpctrain render --nodes 2), and so do HPCTRAIN_* variables (HPCTRAIN_ACCOUNT=proj_a).",
    )


def _cluster(found: Found) -> str:
    if found.profile is not None:
        name = found.profile.profile.name
        return "\n".join(["", _line(f"cluster: {name}", f"sources: hpctrain clusters show {name}"), ""])
    note = "no profile knows this site" if found.live is not None else "of a cluster that jobs are for"
    return "\n".join(["", _line("# cluster: NAME", f"{note}; known: hpctrain clusters"), ""])


def _resources(found: Found, answers: Answers) -> Iterator[str]:
    yield _answer(answers, "resources", "nodes")
    yield _answer(answers, "resources", "gpus_per_node")
    yield _answer(answers, "resources", "time")
    yield from _partition(found, answers)
    if answers.value("resources", "constraint") is not None:
        yield _answer(answers, "resources", "constraint")
    yield from _account(found, answers)
    yield from _qos(found, answers)
    if answers.value("resources", "gpu_type") is not None:
        yield _answer(answers, "resources", "gpu_type")
    yield from derived(found, answers)


def _partition(found: Found, answers: Answers) -> Iterator[str]:
    chosen = answers.value("resources", "partition")
    if chosen is None:
        by_constraint = chosen_by_constraint(found, answers)
        yield _line("  # partition: NAME", "none: the constraint chooses" if by_constraint else "nobody knows one here: the site's default")
        return
    live = live_partition(found, answers)
    why = answers.known["resources", "partition"].why
    yield _line(f"  partition: {scalar(chosen)}", f"{describe(live)}; {why}" if live is not None else why)
    others = [each for each in usable(found.live, answers.value("resources", "account")) if each.name != chosen] if found.live else []
    if others:
        yield "  # others:"
        for each in others[:20]:
            start = f"  #   partition: {_clean(each.name):<20} "
            yield from textwrap.wrap(_clean(describe(each)), _WIDTH, initial_indent=start, subsequent_indent=f"  #{'':<8}")


def _account(found: Found, answers: Answers) -> Iterator[str]:
    chosen = answers.value("resources", "account")
    if chosen is None:
        command = found.cluster.profile.account.list_command if found.cluster is not None else None
        yield _line("  # account: my_project", f"who pays; yours: {command}" if command else "who pays")
        return
    others = [name for name in (found.live.accounts if found.live is not None else None) or () if name != chosen.lower()]
    yield _line(f"  account: {scalar(chosen)}", answers.known["resources", "account"].why)
    if others:
        yield from _listed("others of yours", others)


def _qos(found: Found, answers: Answers) -> Iterator[str]:
    chosen, (names, default) = answers.value("resources", "qos"), qos_of(found, answers)
    limits = {each.name: each.time_max for each in (found.live.qos if found.live is not None else None) or ()}
    shown = [f"{name} ({duration.format(limits[name] or 0)})" if limits.get(name) else name for name in names]
    if chosen is not None:
        yield _answer(answers, "resources", "qos")
    else:
        word = default or (names[0] if names else "normal")
        yield _line(f"  # qos: {scalar(word)}", "the default one" if default == word else "")
    if len(shown) > 1:
        yield from _listed("yours", shown)


def derived(found: Found, answers: Answers) -> Iterator[str]:
    """Yield what follows from the answers: what the profile says at every `render` as a comment, what Slurm alone knows as a value."""
    values = dict(_derived(found, answers))
    for name, fallback in (("gpu_directive", "gres"), ("cpus_per_gpu", "8"), ("mem", "64G"), ("constraint", "a100")):
        value, why, explicit = values.get(name, (fallback, "", False))
        if answers.value("resources", name) is not None:
            continue  # it stands there already
        if explicit:
            yield _line(f"  {name}: {scalar(value)}", why)
        elif name in values:
            yield _line(f"  # {name}: {scalar(value)}", why)
        elif name == "mem":
            yield _line(f"  # mem: {value}", "of each node; 0 is all of it")


def _derived(found: Found, answers: Answers) -> Iterator[tuple[str, tuple[str, str, bool]]]:
    """Yield key → value, where it comes from, and whether it has to stand in the file."""
    if found.cluster is None:
        return
    answered = [answers.layer()]
    by_profile = cluster_layer.layer(found.profile, answered) if found.profile is not None else None
    merged = cluster_layer.layer(found.cluster, answered)
    for name in ("gpu_directive", "cpus_per_gpu", "mem", "constraint"):
        path: KeyPath = ("resources", name)
        value = written([merged], path)
        if value is None:
            continue
        if name == "mem":
            value = _share(found.cluster, answers) or value
        why, value = _tighter(found, answers, name, str(value), merged.origins.get(path, ""))
        known = written([by_profile], path) if by_profile is not None else None
        yield name, (value, why, value != known)


def _share(cluster: Cluster, answers: Answers) -> str | None:
    """Return the share of a node's memory that goes with the job's GPUs, where that is what a job asks for."""
    memory, gpus = cluster.profile.memory, int(answers.value("resources", "gpus_per_node") or 1)
    if memory.request != "per-gpu" or memory.per_gpu is not None:
        return None
    shape = cluster_layer.shape(cluster.profile, [answers.layer()])
    share = shape.memory_for(gpus) if shape is not None else None
    return memory_size.format(share) if share is not None else None


def _tighter(found: Found, answers: Answers, name: str, value: str, why: str) -> tuple[str, str]:
    """Return where a derived value comes from, and the value, cut to what the nodes and the partition of this job allow."""
    nodes, partition = nodes_of(found, answers), live_partition(found, answers)
    gpus = int(answers.value("resources", "gpus_per_node") or 1)
    if partition is None or nodes is None or not nodes.gpu_count:
        return why, value
    shown = f"sinfo -p {partition.name}"
    if name == "cpus_per_gpu" and nodes.cpus and int(value) > nodes.cpus // nodes.gpu_count:
        value = str(max(1, nodes.cpus // nodes.gpu_count))
    if name == "cpus_per_gpu" and nodes.cpus:
        why = f"{nodes.cpus} CPUs for {nodes.gpu_count} GPUs: {shown}"
    if name == "mem" and nodes.memory:
        share = nodes.memory * gpus // nodes.gpu_count
        whole = nodes.memory if gpus >= nodes.gpu_count else share
        if partition.memory_max_per_node is not None and partition.memory_max_per_node < whole:
            return f"MaxMemPerNode: scontrol show partition {partition.name}", gib(partition.memory_max_per_node)
        if value != "0" and memory_size.parse(value) > share:
            value = gib(share)
        part = "all" if value == "0" else f"{gpus} of {nodes.gpu_count} GPUs' share"
        why = f"{part} of a node's {nodes.memory / 1024**3:.0f}G: {shown}"
    return why, value


def _environment(found: Found, answers: Answers) -> Iterator[str]:
    modules = found.cluster.profile.modules if found.cluster is not None else None
    suggested = ", ".join(modules.suggested) if modules is not None else ""
    source = f"users of this cluster load: {found.cluster.evidence('modules', 'suggested')}" if suggested and found.cluster else ""
    yield _line(f"  # modules: [{suggested or 'cuda/12.2'}]", source or "loaded on the compute node, in this order")
    chosen = [path for path in answers.known if path[0] == "environment" and answers.known[path].value is not None]
    yield from (_answer(answers, *path) for path in chosen)
    if not chosen:
        yield _line("  # venv: .venv", "no environment was found here; or conda: NAME, uv: DIR, pixi: DIR")
    others = [f"{each.kind}: {each.value}" for each in found.environments if each.value != answers.value(*(chosen or [("",)])[0])]
    if others:
        yield from _listed("others", others)


def _training(answers: Answers) -> Iterator[str]:
    yield _line("# script: train.py", "your own; without it: hpctrain's")
    yield _line("training:", "arguments of the script, as --key value")
    for name, hint in (("model_name_or_path", "models/my_model"), ("dataset_name", "data/my_dataset")):
        if answers.value("training", name) is not None:
            yield _answer(answers, "training", name)
        else:
            what = "a model" if name.startswith("model") else "a tokenised dataset"
            yield f"  # a folder with {what}; or: hpctrain prepare --demo demo"
            yield f"  # {name}: {hint}"
    yield "  # max_steps: 1000"


def _answer(answers: Answers, *path: str) -> str:
    answer = answers.known.get(path)
    indent = "  " * (len(path) - 1)
    return _line(f"{indent}{path[-1]}: {scalar(answer.value or '')}", answer.why) if answer is not None else ""


def scalar(value: str) -> str:
    """Return `value` as YAML reads it back: plain where that is safe, else in double quotes, as JSON writes them."""
    if _PLAIN.match(value) and value.lower() not in _NOT_TEXT:
        return value
    # JSON's pairs of escapes for what lies beyond U+FFFF are no YAML, and YAML has characters that it wants escaped.
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in json.dumps(value, ensure_ascii=False))


def _line(code: str, why: str) -> str:
    """Return a line with its words behind it, in one column; too long ones go on in comments below, or stand above a long line."""
    if not why:
        return code
    why = _SOURCE.sub(r"\1", why)
    if len(code) > _LONG:
        indent = " " * (len(code) - len(code.lstrip()))
        return "\n".join([*(f"{indent}# {line}" for line in textwrap.wrap(_clean(why), _WIDTH - 4)), code])
    start = f"{code:<{_COLUMN - 1}} # "
    first, *rest = textwrap.wrap(_clean(why), max(30, _WIDTH - len(start)), break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join([start + first, *(f"{'':<{_COLUMN - 1}} # {line}" for line in rest)])


def _listed(title: str, words: Iterable[str]) -> Iterator[str]:
    yield from (f"  # {line}" for line in textwrap.wrap(_clean(f"{title}: {', '.join(words)}"), _WIDTH - 4))


def _comment(*lines: str) -> str:
    return "\n".join(f"# {part}" for line in lines for part in textwrap.wrap(_clean(line), _WIDTH - 2))


def _clean(words: str) -> str:
    """Return `words` on one line without control characters, which would end the comment and begin a key."""
    return "".join(character if character.isprintable() else " " for character in words)
