"""Judges of modules, folders, quotas, offline readiness and Slurm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpctrain.doctor.verdict import Verdict
from hpctrain.doctor.words import many, size
from hpctrain.jobs import shell
from hpctrain.jobs.finding import Finding

if TYPE_CHECKING:
    from hpctrain.doctor.facts import Case, FolderFacts, ModuleFacts, ModulesFacts, OfflineFacts, Quota, QuotaFacts, SlurmFacts

#: Less than this is free: the next checkpoint of a small model does not fit.
_LITTLE_BYTES = 5 << 30
_FEW_INODES = 10_000
#: The share of a quota from which a job may run into it.
_NEAR = 0.9
#: How Environment Modules and Lmod say that they know no such module.
_UNKNOWN_WORDS = ("unable to locate", "unknown", "not found", "cannot be loaded as requested")
#: How programs say that they found no network.
_NETWORK = re.compile(
    r"network|offline|connect|unreachable|resol(?:ve|ution)|name or service|timed? ?out|proxy|https?:|huggingface\.co|LocalEntryNotFound",
    re.IGNORECASE,
)


def modules(facts: ModulesFacts, case: Case) -> Verdict:
    """Say which modules load, and tell apart why one does not."""
    if not case.spec.modules:
        return Verdict(probe="modules", sentence="the job loads none")
    if facts.late:
        return Verdict(probe="modules", sentence="`module load` did not end within a minute", unknown=True)
    profile = case.cluster.profile if case.cluster is not None else None
    elsewhere = profile is not None and profile.modules.on_login_nodes is False
    if facts.command is False:
        return _no_module_command(facts, case, elsewhere=elsewhere)
    failed = [module for module in facts.modules if module.loaded is False]
    unknown = [module for module in facts.modules if module.loaded is None]
    if failed and elsewhere and profile is not None:
        names = ", ".join(module.name for module in failed)
        return Verdict(probe="modules", sentence=f"{names}: on {profile.name} modules load on compute nodes only", unknown=True)
    if failed:
        found = tuple(_not_loaded(module) for module in failed)
        return Verdict(probe="modules", sentence=f"{len(failed)} of {len(facts.modules)} do not load", findings=found)
    if unknown:
        return Verdict(probe="modules", sentence=f"{unknown[0].name} ended the shell that loaded it", unknown=True)
    return Verdict(probe="modules", sentence=f"{', '.join(module.name for module in facts.modules)} load here")


def caches(folders: tuple[FolderFacts, ...]) -> Verdict:
    """Say where the caches are and how large, and whether there is room."""
    parts = []
    for folder in folders:
        where = f"{folder.name} {folder.path}"
        held = f"{'' if folder.whole else 'over '}{size(folder.size)}" if folder.size is not None else f"{size(folder.free or 0)} free"
        parts.append(f"{where} ({held if folder.exists else 'absent'}, {folder.file_system or 'unknown file system'})")
    return Verdict(probe="caches", sentence="; ".join(parts), findings=tuple(_room(folders)))


def quotas(facts: QuotaFacts) -> Verdict:
    """Say what is left of bytes and files where the job writes."""
    found = [*_room(facts.folders), *(finding for quota in facts.quotas for finding in _near_quota(quota))]
    parts = [_quota_words(quota) for quota in facts.quotas if quota.limit or quota.files_limit]
    for folder in facts.folders:
        inodes = "" if folder.free_inodes is None else f" and {many(folder.free_inodes, 'file')}"
        parts.append(f"{folder.name} ({folder.file_system or 'unknown'}): {size(folder.free or 0)}{inodes} free")
    if not facts.asked:
        parts.append("no quota program here")
    elif not facts.quotas:
        parts.append(f"{' and '.join(facts.asked)} tell{'s' if len(facts.asked) == 1 else ''} of no quota")
    return Verdict(probe="quotas", sentence="; ".join([*parts, *facts.silent]), findings=tuple(found))


def offline(facts: OfflineFacts, case: Case) -> Verdict:
    """Say whether the training starts without a network, and how that was tried."""
    if facts.skipped is not None:
        return Verdict(probe="offline", sentence=f"not tried: {facts.skipped}", unknown=True)
    if facts.late:
        return Verdict(probe="offline", sentence="the start had not ended after three minutes", unknown=True)
    cut_off = facts.way == "namespace" and set(facts.interfaces) <= {"lo"}
    how = (
        "in a network namespace without any interface"
        if cut_off
        else f"with offline switches and proxies to nowhere, because no network namespace can be made here ({facts.no_namespace})"
    )
    if facts.failed is None:
        what = f"{case.spec.script} imports" if case.spec.script is not None else "the training starts"
        return Verdict(probe="offline", sentence=f"{what} {how}" + (f", in {facts.seconds:.0f} s" if facts.seconds else ""))
    if _NETWORK.search(" ".join(facts.said)) is None:
        return Verdict(probe="offline", sentence=f"the start fails at: {facts.failed}", findings=(_start(facts, how),))
    internet = case.cluster.profile.internet.compute if case.cluster is not None else None
    finding = Finding(
        id="doctor-offline", level="warning" if internet in ("yes", "proxy") else "error",
        what=f"without a network the start fails at: {facts.failed}",
        evidence=f"tried {how}; it said: {' / '.join(facts.said) or 'nothing'}",
        reason="compute nodes reach the internet" if internet in ("yes", "proxy")
        else "most compute nodes have no internet: there the job waits for time-outs, then fails",
        fix="download what it asks for on the login node, and give the job local folders",
    )  # fmt: skip
    return Verdict(probe="offline", sentence=f"the start fails at: {facts.failed}", findings=(finding,))


def _start(facts: OfflineFacts, how: str) -> Finding:
    """Return the finding on a start that fails for another reason, with what the training itself says to type."""
    fixes = [line.removeprefix("fix: ") for line in facts.said if line.startswith("fix: ")]
    said = [line for line in facts.said if not line.startswith("fix: ")]
    return Finding(
        id="doctor-start", level="error", what=f"the start of the training fails at: {facts.failed}",
        evidence=f"tried {how}; it said: {' / '.join(said) or 'nothing'}",
        reason="nothing that it said is about the network, so that the job would stop there too",
        fix=fixes[-1] if fixes else "mend what it said, then: hpctrain doctor",
    )  # fmt: skip


def slurm(facts: SlurmFacts, case: Case) -> Verdict:
    """Say whether Slurm answers and who may pay."""
    if not facts.installed:
        return Verdict(probe="slurm", sentence="no sinfo on PATH, so jobs run on this machine", unknown=True)
    if facts.silent is not None:
        finding = Finding(
            id="doctor-slurm-silent", level="error", what="Slurm does not answer", evidence=f"it said: {facts.silent}",
            reason="nothing can be submitted", fix="sinfo",
        )  # fmt: skip
        return Verdict(probe="slurm", sentence="Slurm does not answer", findings=(finding,))
    words = f"{facts.version}, {many(len(facts.partitions), 'partition')}"
    if facts.accounts is None:
        return Verdict(probe="slurm", sentence=f"{words}; accounting does not say which accounts are yours")
    if not facts.accounts:
        listed = case.cluster.profile.account.list_command if case.cluster is not None else None
        finding = Finding(
            id="doctor-no-account", level="warning", what="no Slurm account is yours", evidence="sacctmgr show user withassoc",
            reason="where accounts are enforced, sbatch refuses every job", fix=listed or "sacctmgr show user $USER withassoc",
        )  # fmt: skip
        return Verdict(probe="slurm", sentence=f"{words}; no account", findings=(finding,))
    plural = "account" if len(facts.accounts) == 1 else "accounts"
    return Verdict(probe="slurm", sentence=f"{words}; your {plural}: {', '.join(facts.accounts)}")


def cluster(facts: SlurmFacts, case: Case) -> Verdict:
    """Say which cluster profile had a say, or which one would."""
    if case.cluster is None:
        if facts.detected:
            words = f"no `cluster:` in the config; this machine looks like {' or '.join(facts.detected)}: --cluster {facts.detected[0]}"
        else:
            words = "no profile knows this machine, so nothing is compared with a cluster's nodes"
        return Verdict(probe="cluster", sentence=words, unknown=True)
    profile, shape = case.cluster.profile, case.shape
    words = f"{profile.name}: {profile.title}"
    if shape is not None:
        words += f"; nodes with {many(shape.gpus, 'GPU')}" + (f" {shape.gpu}" if shape.gpu else "")
    return Verdict(probe="cluster", sentence=words)


def _no_module_command(facts: ModulesFacts, case: Case, *, elsewhere: bool) -> Verdict:
    if elsewhere:
        return Verdict(probe="modules", sentence="there is no `module` on this login node; compute nodes have it", unknown=True)
    names = ", ".join(case.spec.modules)
    fix = "launch.shebang: '#!/bin/bash -l' in config.yaml" if facts.login_shell else "take environment.modules out of config.yaml"
    finding = Finding(
        id="doctor-module-command", level="error", what=f"the job's shell ({facts.program}) has no `module` command; the job loads {names}",
        evidence="a login shell has it" if facts.login_shell else "type module", fix=fix,
        reason="the job would stop with `module: command not found`",
    )  # fmt: skip
    return Verdict(probe="modules", sentence="there is no `module` command in the job's shell", findings=(finding,))


def _not_loaded(module: ModuleFacts) -> Finding:
    name = module.name.partition("/")[0]
    said = module.said.lower()
    unknown = name.lower() in said and any(words in said for words in _UNKNOWN_WORDS)
    look = f"module avail {shell.quote(name)}" if unknown else f"module show {shell.quote(module.name)}"
    return Finding(
        id="doctor-module-unknown", level="error",
        what=f"there is no module {module.name} here" if unknown else f"the module {module.name} does not load",
        evidence=f"module load said: {module.said or 'nothing'}", reason="the job stops there, before the training",
        fix=f"{look}; then environment.modules in config.yaml",
    )  # fmt: skip


def _room(folders: tuple[FolderFacts, ...]) -> list[Finding]:
    found = []
    for folder in folders:
        if folder.free is not None and folder.free < _LITTLE_BYTES and folder.file_system not in ("ramfs",):
            found.append(
                Finding(
                    id="doctor-disk-full", level="warning", what=f"{size(folder.free)} are free where {folder.name} is ({folder.path})",
                    evidence="statvfs", reason="a checkpoint or a cache that does not fit ends the job",
                    fix=f"df -h {shell.quote(folder.path)}" + (f", or set {folder.set_by}" if folder.set_by else ""),
                )
            )  # fmt: skip
        if folder.free_inodes is not None and folder.free_inodes < _FEW_INODES:
            found.append(
                Finding(
                    id="doctor-inodes", level="warning",
                    what=f"{many(folder.free_inodes, 'more file')} can be made where {folder.name} is ({folder.path})", evidence="statvfs",
                    reason="an environment has tens of thousands of files: without inodes, writing fails although there is room",
                    fix=f"df -i {shell.quote(folder.path)}",
                )
            )  # fmt: skip
    return found


def _quota_words(quota: Quota) -> str:
    parts = [f"{size(quota.used)} of {size(quota.limit)}"] if quota.limit else []
    if quota.files is not None and quota.files_limit:
        parts.append(f"{quota.files:,} of {many(quota.files_limit, 'file')}")
    return f"{quota.file_system}: {', '.join(parts)}"


def _near_quota(quota: Quota) -> list[Finding]:
    shares = [
        ("bytes", quota.used, quota.limit, f"{size(quota.used)} of {size(quota.limit or 0)}"),
        ("files", quota.files or 0, quota.files_limit, f"{quota.files or 0:,} of {quota.files_limit or 0:,} files"),
    ]
    return [
        Finding(
            id="doctor-quota", level="error" if used >= limit else "warning", what=f"the quota of {quota.file_system} is at {words}",
            evidence="quota" if ":" in quota.file_system else "lfs quota, or quota", reason="at the limit every write of the job fails",
            fix=f"du -sh ~/.cache ~/.conda; find . -xdev | wc -l; then delete, or move {kind} to the scratch file system",
        )
        for kind, used, limit, words in shares
        if limit and used >= _NEAR * limit
    ]  # fmt: skip
