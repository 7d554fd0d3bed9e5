"""Where the job runs and writes: there, writable, seen by the compute nodes, large enough, and not deleted by the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpctrain.jobs import shell
from hpctrain.jobs.check import sizes
from hpctrain.jobs.check.case import Case, Fact
from hpctrain.jobs.check.surroundings import PathFacts
from hpctrain.jobs.finding import Finding

if TYPE_CHECKING:
    from hpctrain.clusters.site import Storage

#: Directories that every node has its own of.
_NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/local", "/localscratch", "/scratch_local", "/mnt/bb")  # noqa: S108 - named, not used
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
#: A training writes logs, samples and a checkpoint's parts; fewer free files than this do not hold them.
_FILES = 200
_VARIABLE = re.compile(r"\$\{?(\w+)\}?|<(\w+)>")


def rules(case: Case) -> Iterator[Finding]:
    """Return what is wrong with the places that the job reads and writes."""
    yield from _directory(case)
    yield from _output(case)
    yield from _space(case)
    if not case.local:
        yield from _not_shared(case)
        yield from _not_mounted(case)
        yield from _purged(case)


def _directory(case: Case) -> Iterator[Finding]:
    where, said = case.around.chdir, case.said("chdir", value=case.spec.chdir)
    if where is None:
        return
    if not where.exists or not where.is_dir:
        yield case.finding(
            # Rendered on a laptop for a cluster, it is there and not here.
            "chdir-missing", "error" if case.local or case.live is not None else "warning",
            f"the job's directory {case.spec.chdir} {'is a file' if where.exists else 'does not exist here'}",
            evidence=said, reason="Slurm cannot start the script there, and its logs have no place to go",
            fix=f"mkdir -p {shell.quote(case.spec.chdir)}" if not where.exists else case.command(("--chdir", "DIRECTORY")),
        )  # fmt: skip
    elif where.writable is False:
        yield case.finding(
            "chdir-not-writable", "error", f"you cannot write to the job's directory {case.spec.chdir}",
            evidence=f"{said}; its mode is {where.mode or 0:o}",
            reason="the job's logs and run directory lie there: it ends at once, with no log",
            fix=case.command(("--chdir", "DIRECTORY")),
        )  # fmt: skip


def _output(case: Case) -> Iterator[Finding]:
    where = case.around.output
    if where is None or (case.around.chdir is not None and not case.around.chdir.is_dir):
        return
    said = case.said("training", "output_dir", value=where.said)
    if where.exists and not where.is_dir:
        problem, fix = "is a file", f"mv {shell.quote(where.path)} {shell.quote(where.path)}.old"
    elif where.writable is False:
        problem, fix = "cannot be written to", f"ls -ld {shell.quote(where.parent)}, then: output_dir: DIRECTORY under training"
    else:
        return
    yield case.finding(
        "output-not-writable", "error", f"the output directory {where.said!r} {problem}",
        evidence=f"{said}; {where.path}", reason="the first checkpoint would end the training", fix=fix,
    )  # fmt: skip


def _space(case: Case) -> Iterator[Finding]:
    where, need = case.around.output or case.around.chdir, sizes.checkpoint_bytes(case)
    system = where.filesystem if where is not None else None
    if where is None or system is None:
        return
    if need is not None and system.free is not None and system.free < need.size:
        yield case.finding(
            "output-space", "error", f"one checkpoint is {sizes.gib(need.size)}, and {sizes.gib(system.free)} are free",
            evidence=f"{where.said}: {system.limit} of {system.mount} ({system.kind}); {need.words}",
            reason="the training ends when it saves, and leaves half a checkpoint",
            fix=f"make room in {shell.quote(where.parent)}, or write elsewhere: output_dir: DIRECTORY under training in config.yaml",
        )  # fmt: skip
    elif need is not None and system.free is not None and system.free < 2 * need.size:
        yield case.finding(
            "output-space", "warning", f"a checkpoint is {sizes.gib(need.size)}, and {sizes.gib(system.free)} are free: room for one",
            evidence=f"{where.said}: {system.limit} of {system.mount} ({system.kind}); {need.words}",
            reason="the second is written before the first is removed, so there must be room for two",
            fix=f"make room in {shell.quote(where.parent)}, or write elsewhere: output_dir: DIRECTORY under training in config.yaml",
        )  # fmt: skip
    if system.free_files is not None and system.free_files < _FILES:
        yield case.finding(
            "output-files", "error", f"{system.free_files} more files can be made in {system.mount}",
            evidence=f"{where.said}: {system.limit}", reason="the quota of files is used up: logs and checkpoints cannot be made",
            fix=f"find {shell.quote(where.parent)} -xdev -type f | cut -d/ -f1-5 | sort | uniq -c | sort -n | tail",
        )  # fmt: skip


def _not_shared(case: Case) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for what, where in case.around.paths:
        kind = where.filesystem.kind if where.filesystem is not None else ""
        root = next((local for local in _NODE_LOCAL if where.real == local or where.real.startswith(f"{local}/")), None)
        stored = stored_on(case, where)
        in_memory = kind in _IN_MEMORY or (stored is not None and stored[1].in_memory)
        if root is not None or in_memory:
            place = root or where.path
            found.setdefault(place, []).append(what)
            kinds[place] = (
                f"{place} is in memory ({kind or 'the site says so'})" if in_memory else f"{place} is another directory on every node"
            )
    for place, names in found.items():
        lie, them = ("lies", "it") if len(names) == 1 else ("lie", "them")
        listed = f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
        yield case.finding(
            "path-not-shared", "warning", f"{listed} {lie} in {place}, which compute nodes do not share",
            evidence=kinds[place], reason=f"the job does not find {them} on its nodes, or writes what nobody finds again",
            fix=f"move {them} to a shared file system, such as {_shared(case)}, and name {them} there",
        )  # fmt: skip


def _shared(case: Case) -> str:
    """Return a directory that the site shares, for what to type."""
    for name in ("scratch", "work", "project", "projects", "fast", "home"):
        for key, each in case.profile.storage.items() if case.profile is not None else ():
            if key.lower() == name and each.path and not each.in_memory and each.on_compute_nodes is not False:
                return each.path
    return "your project's or scratch directory"


def stored_on(case: Case, where: PathFacts) -> tuple[str, Storage] | None:
    """Return the site's file system that a path lies on: the one with the longest matching path."""
    best: tuple[int, str, Storage] | None = None
    for name, each in case.profile.storage.items() if case.profile is not None else ():
        match = re.match(_pattern(case, each.path), where.real) or re.match(_pattern(case, each.path), where.path) if each.path else None
        if match and (best is None or match.end() > best[0]):
            best = (match.end(), name, each)
    return (best[1], best[2]) if best is not None else None


def _pattern(case: Case, path: str) -> str:
    """Return the regular expression of a storage path: $USER is the user, <account> and unknown variables are one name."""
    parts: list[str] = []
    position = 0
    for found in _VARIABLE.finditer(path):
        name = found[1] or ""
        value = case.around.user if name == "USER" else case.around.variables.get(name)
        parts += [re.escape(path[position : found.start()]), re.escape(value) if value else "[^/]+"]
        position = found.end()
    return "".join([*parts, re.escape(path[position:].rstrip("/"))]) + r"(?=/|\Z)"


def _not_mounted(case: Case) -> Iterator[Finding]:
    for what, where in case.around.paths:
        stored = stored_on(case, where)
        if stored is None or stored[1].on_compute_nodes is not False:
            continue
        fact = case.fact(stored[1], "storage", stored[0], "on_compute_nodes")
        if fact is not None:
            yield case.finding(
                "path-not-mounted", fact.severity, f"{what} lies on {stored[0]}, which compute nodes do not mount",
                evidence=f"{where.path}; {fact.source}", reason="the job does not find it",
                fix=f"copy it to a file system that they mount, such as {_shared(case)}, and name it there",
            )  # fmt: skip


def _purged(case: Case) -> Iterator[Finding]:
    for what, where in (("the output", case.around.output or case.around.chdir), ("the Python environment", _prefix(case))):
        stored = stored_on(case, where) if where is not None else None
        fact: Fact[int] | None = case.fact(stored[1].purge_days, "storage", stored[0], "purge_days") if stored is not None else None
        if where is None or stored is None or fact is None or not fact.value:
            continue
        kept = next((key for key in ("WORK", "PROJECT", "PROJECTS", "HOME") if case.profile and key in case.profile.storage), None)
        yield case.finding(
            "path-purged", "warning" if what == "the output" else "note",
            f"{what} lies on {stored[0]}, where files that nobody touches for {fact.value} days are deleted",
            evidence=f"{where.path}; {fact.source}",
            reason="what you want to keep has to be copied in time" if what == "the output" else "an environment loses files one by one",
            fix=f"after the job: cp -r {shell.quote(where.path)} {'$' + kept if kept else 'DIRECTORY_THAT_IS_KEPT'}",
        )  # fmt: skip


def _prefix(case: Case) -> PathFacts | None:
    return case.around.python.prefix if case.around.python is not None else None
