"""The account that pays: whose it is, and whether it goes with the partition and the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpctrain.jobs.check.case import Case, Fact, closest, confirm
from hpctrain.jobs.finding import Finding

_PARTITION = ("resources", "partition")
_ACCOUNT = ("resources", "account")
_CONSTRAINT = ("resources", "constraint")
_ASK = "ask your project's leader, or the site, for an account"


def rules(case: Case) -> Iterator[Finding]:
    """Return what is wrong with the account."""
    yield from _account(case)
    yield from _account_and_partition(case)
    yield from _account_and_nodes(case)


def _account(case: Case) -> Iterator[Finding]:
    account, own = case.spec.account, case.live.accounts if case.live is not None else None
    if account is None:
        yield from _no_account(case, own)
        return
    if own is not None:
        # Slurm compares, and keeps, account names in lower case.
        if account.lower() not in {name.lower() for name in own}:
            nearest = closest(account, own)
            yield case.finding(
                "account-unknown", "error", f"you may not charge the account {account!r}",
                evidence=f"{case.said(*_ACCOUNT, value=account)}; sacctmgr lists for you: {', '.join(own) or 'none'}",
                reason="Slurm refuses the job: Invalid account or account/partition combination specified",
                fix=case.fix((_ACCOUNT, nearest)) if nearest else _ASK,
            )  # fmt: skip
        return
    rule = case.profile.account if case.profile is not None else None
    fact = case.fact(rule.pattern, "account", "pattern") if rule is not None else None
    if rule is None or fact is None or re.fullmatch(fact.value, account, re.IGNORECASE if rule.ignore_case else 0):
        return
    listing = rule.list_command or "sacctmgr -nP show associations user=$USER format=account"
    yield case.finding(
        "account-form", "warning", f"the account {account!r} does not look like one of this site",
        evidence=f"{case.said(*_ACCOUNT, value=account)}; accounts match {fact.value} ({fact.source})",
        reason="Slurm refuses a job whose account does not exist",
        fix=f"{listing}, then: {case.fix((_ACCOUNT, rule.example or 'NAME'))}",
    )  # fmt: skip


def _no_account(case: Case, own: tuple[str, ...] | None) -> Iterator[Finding]:
    rule = case.profile.account if case.profile is not None else None
    fact = case.fact(rule.required, "account", "required") if rule is not None and rule.required else None
    default = case.live.default_account if case.live is not None else None
    if default is not None and own is not None and default.lower() not in {name.lower() for name in own}:
        default = None  # of another cluster
    elif default is None and own == () and case.live is not None and case.live.enforces_accounts:
        fact = Fact(True, "live", "sacctmgr lists no account for you")
    if fact is None:
        return
    # Of a default account that this partition does not take, `account-not-allowed` says so.
    usable = default if default is not None and _tied_elsewhere(case, default) is None else None
    note = f", and your default account is {default}" if default else ""
    here = [name for name in own or () if _tied_elsewhere(case, name) is None]
    example = next(iter(here), None) or (rule.example if rule is not None else None) or "NAME"
    listing = (rule.list_command if rule is not None else None) or "sacctmgr -nP show associations user=$USER format=account"
    yield case.finding(
        "account-missing", "warning" if usable else fact.severity, f"no account is given{note or ', and this site wants one'}",
        evidence=f"{fact.source}{confirm(fact, listing)}",
        reason="who pays is then not said: Slurm refuses the job, or charges a project that you did not mean",
        fix=f"{listing}, then: {case.fix((_ACCOUNT, usable or example))}",
    )  # fmt: skip


def _payer(case: Case) -> tuple[str | None, str]:
    """Return the account that pays, the user's default where none is given, and the words that show it."""
    if case.spec.account is not None:
        return case.spec.account, case.said(*_ACCOUNT, value=case.spec.account)
    default = case.live.default_account if case.live is not None else None
    return default, f"sacctmgr: your default account is {default}"


def _charged_in(case: Case, account: str) -> tuple[str, ...] | None:
    """Return the partitions that the user may charge an account in, in lower case as slurmdbd keeps them; None: all, or nobody knows."""
    mine = [each for each in (case.live.associations or ()) if each.account.lower() == account.lower()] if case.live is not None else []
    tied = tuple(each.partition.lower() for each in mine if each.partition is not None)
    enforced = case.live is not None and case.live.enforces_accounts is not False
    return tied if tied and len(tied) == len(mine) and enforced else None


def _tied_elsewhere(case: Case, account: str) -> tuple[str, ...] | None:
    """Return those partitions where the job's is none of them; None where nothing is wrong."""
    tied = _charged_in(case, account)
    names = {name.lower() for name in (*(each.name for each in case.landing), *case.partition_names)}
    return tied if tied is not None and names and not names & set(tied) else None


def _account_and_partition(case: Case) -> Iterator[Finding]:
    live, name = case.live_partition, case.partition_name
    account, said = _payer(case)
    if account is None or name is None:
        return
    fact: Fact[tuple[str, ...]] | None = None
    words, tied = "", _tied_elsewhere(case, account)
    if live is not None and account.lower() in {each.lower() for each in live.deny_accounts}:
        fact, words = Fact((), "live", f"scontrol show partition {name}"), f"DenyAccounts holds {account}"
    elif live is not None and live.allow_accounts is not None:
        fact, words = Fact(live.allow_accounts, "live", f"scontrol show partition {name}"), f"AllowAccounts={','.join(live.allow_accounts)}"
    elif live is None and case.known_partition is not None and case.known_partition.accounts:
        fact = case.fact(case.known_partition.accounts, "partitions", name, "accounts")
        words = f"AllowAccounts={','.join(case.known_partition.accounts)}"
    if fact is not None and account.lower() in {each.lower() for each in fact.value}:
        fact = None
    if fact is None and tied is not None:
        fact, words = Fact((), "live", "sacctmgr show associations"), f"it is yours in {', '.join(tied)} only"
    if fact is None:
        return
    taken = {each.lower() for each in fact.value} or None if words.startswith("AllowAccounts") else None
    own = (case.live.accounts or ()) if case.live is not None else ()
    denied = {each.lower() for each in live.deny_accounts} if live is not None else set()
    both = [each for each in own if each.lower() != account.lower() and each.lower() not in denied and _tied_elsewhere(case, each) is None]
    other = _other_partition(case, account)
    both = [each for each in both if taken is None or each.lower() in taken]
    yield case.finding(
        "account-not-allowed", fact.severity, f"partition {name} does not take the account {account!r}",
        evidence=f"{said}; {fact.source}: {words}",
        reason="Slurm refuses the job: Invalid account or account/partition combination specified",
        fix=case.fix((_ACCOUNT, both[0])) if both else case.fix((_PARTITION, other)) if other else _ASK,
    )  # fmt: skip


def _other_partition(case: Case, account: str) -> str | None:
    charged = _charged_in(case, account)
    for each in (case.live.partitions or ()) if case.live is not None else ():
        taken = each.allow_accounts is None or account.lower() in {name.lower() for name in each.allow_accounts}
        taken = taken and (charged is None or each.name.lower() in charged)
        if taken and each.up and (each.gpus_max or 0) >= case.spec.gpus_per_node and account not in each.deny_accounts:
            return each.name
    return None


def _account_and_nodes(case: Case) -> Iterator[Finding]:
    """The account's suffix against the nodes: `abc@h100` needs `-C h100` (IDRIS), `…g` the GPU partitions (Deucalion)."""
    shape, (account, said) = case.shape, _payer(case)
    suffixes = {
        name: each.select.account_suffix for name, each in (case.profile.nodes.items() if case.profile is not None else ())
        if each.select.account_suffix
    }  # fmt: skip
    if account is None or case.profile is None or not suffixes:
        return
    named = next((name for name, suffix in suffixes.items() if account.lower().endswith(suffix.lower())), None)
    wanted = case.profile.nodes[named].select.constraint if named else None
    if wanted and not set(wanted.split("&")) <= set(re.split(r"[&|,*()\[\]]+", case.spec.constraint or "")):
        fact = case.fact(wanted, "nodes", named or "", "select", "constraint")
        if fact is not None:
            yield case.finding(
                "account-nodes", fact.severity, f"the account {account!r} pays for {named} nodes, and the job does not ask for {wanted}",
                evidence=f"{said}; {fact.source}",
                reason="without that constraint the site takes the job for one of another kind, and refuses the account",
                fix=case.fix((_CONSTRAINT, wanted)),
            )  # fmt: skip
        return
    suffix = shape.select.account_suffix if shape is not None else None
    if suffix and not account.lower().endswith(suffix.lower()):
        fact = case.fact(suffix, "nodes", case.shape_name or "", "select", "account_suffix")
        wished = _with_suffix(case, account[: -len(suffixes[named])] if named else account, suffix)
        if fact is not None:
            yield case.finding(
                "account-nodes", fact.severity, f"{case.shape_name} nodes are paid by an account that ends in {suffix}, not {account!r}",
                evidence=f"{said}; {fact.source}",
                reason="the site refuses the job, or charges hours of another kind",
                fix=case.fix((_ACCOUNT, wished)),
            )  # fmt: skip


def _with_suffix(case: Case, account: str, suffix: str) -> str:
    """Return the account with the suffix, in place of another one where the site's pattern wants that: abcd-delta-cpu, abcd-delta-gpu."""
    rule = case.profile.account if case.profile is not None else None
    stem, mark, _ = account.rpartition(suffix[0])
    wished = [account + suffix, stem + suffix] if mark and not suffix[0].isalnum() else [account + suffix]
    fits = (each for each in wished if rule is not None and rule.pattern and re.fullmatch(rule.pattern, each))
    return next(fits, wished[0])
