"""Rules about `#SBATCH` lines: what sbatch reads, silently treats as a comment, or refuses, and
what the directives request.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from hpctrain.checks.script.facts import GPU_OPTIONS, LintFacts
from hpctrain.checks.script.model import SimpleCommand
from hpctrain.checks.script.rule import (
    REST,
    TALKERS,
    Hits,
    RuleHit,
    is_ours,
    pattern,
    rule,
    works,
)
from hpctrain.slurm.notations import directives
from hpctrain.slurm.notations.directives import Directive, DirectiveFlaw
from hpctrain.util import shell

_EXPANSION = re.compile(r"\$[\w{(@]|`", re.ASCII)
_LOOKS_LIKE = re.compile(r"^([ \t]*)#([A-Za-z]{4,9})[ \t]*(?=[ \t]--?[A-Za-z])", re.MULTILINE)
_PLACEHOLDER_LINE = re.compile(
    r"\s*(?:\$\{\w+\}|\{\{[^{}\n]*\}\}|\{\w+\}|<\w+>|@\w+@)[ \t]*(?:\n|\Z)"
)
_TIME = re.compile(
    r"(?:\d+(?:-\d*(?::\d+){0,2})?|\d+:\d+(?::\d+)?|infinite|unlimited|-1)\Z",
    re.IGNORECASE | re.ASCII,
)
_MEMORY = re.compile(r"\d+\s*(?:[KMGTP](?:i?B)?)?\Z", re.IGNORECASE | re.ASCII)
_MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")


# ---- the file ------------------------------------------------------------------------------------


@rule(
    "dos-line-ends",
    "error",
    "sbatch refuses a script with DOS line breaks, and bash takes the carriage return for a part of"
    " the last word.",
    "src/sbatch/opt.c",
)
def dos_line_ends(facts: LintFacts) -> Hits:
    ends = [match.start() for match in re.finditer("\r\n", facts.text)]
    # With mixed line endings, a carriage return may be data.
    safe = ends if len(ends) == facts.text.count("\n") else []
    for first in ends[:1]:
        yield RuleHit(
            first,
            f"lines that end with a carriage return: {len(ends)}",
            f"sed -i 's/\\r$//' {shell.quote(facts.file)}",
            edits=[(end, end + 1, "") for end in safe],
        )


@rule(
    "no-shebang",
    "error",
    "sbatch refuses a script whose first line does not begin with #!.",
    "src/sbatch/opt.c",
)
def no_shebang(facts: LintFacts) -> Hits:
    meant = any(facts.text.startswith("#SBATCH -", start) for start in facts.batch.comments)
    helper = facts.file.endswith((".sh", ".bash", ".inc", "Makefile")) and not (
        facts.is_batch or meant
    )
    if not facts.text.startswith("#!") and not helper:
        yield RuleHit(
            0,
            "the first line names no interpreter, or a byte order mark is before it",
            "write as the first line: #!/bin/bash",
        )


@rule(
    "unreadable-shell",
    "error",
    "bash stops with a syntax error when it gets there, after the job has waited in the queue.",
    "bash(1)",
)
def unreadable_shell(facts: LintFacts) -> Hits:
    for start, problem, effect in sorted(facts.batch.problems)[:1]:
        warns = effect == "warns"
        yield RuleHit(
            start,
            problem,
            f"write the value in place of {placeholder[0].strip()}"
            if (placeholder := re.search(r"<[A-Za-z][\w -]*>[ \t]*\Z", facts.text[:start][-60:]))
            else f"bash -n {shell.quote(facts.file)}",
            "warning" if warns else "error",
            "bash warns, and takes the rest of the file for the text of the heredoc."
            if warns
            else None,
        )


rule(
    "python-comment",
    "warning",
    "bash expands the text and takes it for the name of a program, which it cannot find.",
    "bash(1) QUOTING",
)(
    pattern(
        r"(\"\"\"|''')[^\n]*\n",
        r"\1 begins no comment in a shell",
        r"write # before each line",
    )
)

# ---- lines that sbatch does not read -------------------------------------------------------------


@rule(
    "directive-after-command",
    "error",
    "sbatch stops reading at the first line that is neither blank nor a comment, "
    "and silently ignores this one.",
    "sbatch(1); src/sbatch/opt.c",
    once=True,
)
def directive_after_command(facts: LintFacts) -> Hits:
    # In a template, the placeholder may become directives.
    is_template = _PLACEHOLDER_LINE.match(facts.text, facts.block.ends)
    return [
        RuleHit(
            start,
            "a directive after the first command",
            "move all #SBATCH lines above the first command",
        )
        for start in facts.batch.comments
        if start >= facts.block.ends and not is_template and _DIRECTIVE.match(facts.text, start)
    ]


_DIRECTIVE = re.compile(r"^#SBATCH\s?-", re.MULTILINE)


@rule(
    "directive-misspelt",
    "error",
    "sbatch reads #SBATCH in upper case and in the first column only, and ignores this line.",
    "src/sbatch/opt.c",
)
def directive_misspelt(facts: LintFacts) -> Hits:
    fix = "write #SBATCH at the beginning of the line"
    for command in facts.named("SBATCH"):
        yield RuleHit(command.start, "'SBATCH' without a # is a command", fix)
    for match in _LOOKS_LIKE.finditer(facts.text, 0, facts.block.ends):
        indent, word = match.groups()
        exact = word.upper() == "SBATCH"
        similar = word.isupper() and difflib.SequenceMatcher(None, word, "SBATCH").ratio() > 0.82
        # In a usage, as `#sbatch train.sh`.
        line = facts.text[match.end() :].partition("\n")[0]
        usage = word.islower() and re.search(r"\s[^-\s]\S*\.\w+(?:\s|\Z)", line)
        if (exact or similar) and not usage and (indent or word != "SBATCH"):
            yield RuleHit(
                match.start(),
                f"{match[0].strip()!r} is a comment here",
                fix,
                edits=[(match.start(), match.end(2), "#SBATCH")] if exact else (),
            )


# ---- what sbatch refuses, or reads differently than it looks -------------------------------------


def _flaws(facts: LintFacts, *kinds: str) -> Iterator[DirectiveFlaw]:
    return (flaw for flaw in facts.block.flaws if flaw.kind in kinds)


@rule(
    "directive-variable",
    "error",
    "sbatch does not expand variables in #SBATCH lines.",
    "sbatch(1) DESCRIPTION",
)
def directive_variable(facts: LintFacts) -> Hits:
    return [
        RuleHit(
            option.start,
            f"{option.written} holds {option.value!r}, unexpanded",
            _PATTERNS
            if option.name in ("output", "error", "input")
            else f"write the value itself, or give it to sbatch: sbatch {option.written} …",
            "warning" if option.name == "job-name" else "error",
        )
        for option in facts.block.options
        if option.name not in ("comment", "wrap") and _EXPANSION.search(option.value or "")
    ]


_PATTERNS = (
    "use Slurm's patterns: %u is the user, %j the job id, %x the job name; write other paths out"
)


@rule(
    "unknown-option",
    "error",
    "sbatch refuses the script: unrecognized option.",
    "sbatch(1)",
)
def unknown_option(facts: LintFacts) -> Hits:
    for flaw in _flaws(facts, "unknown-letter"):
        yield RuleHit(flaw.start, f"sbatch has no option -{flaw.text}", "sbatch --help")
    for flaw in _flaws(facts, "unknown-option"):
        name = flaw.text.lower().replace("_", "-")
        close = difflib.get_close_matches(name, directives.SBATCH, n=1, cutoff=0.8)
        near = directives.OTHER_NAMES.get(name) or next(iter(close), None)
        if near is not None and name not in directives.PLUGINS:  # else an option of a site's plugin
            yield RuleHit(flaw.start, f"sbatch has no option --{flaw.text}", f"write: --{near}")


@rule(
    "not-an-option",
    "error",
    "sbatch refuses the script: Invalid directive, or option requires an argument.",
    "src/sbatch/opt.c",
)
def not_an_option(facts: LintFacts) -> Hits:
    return [
        RuleHit(
            flaw.start,
            f"{flaw.text!r} is not an option, or has no value",
            f"write: {flaw.text}={flaw.hint}"
            if flaw.hint
            else "write options as --name=value, with ASCII dashes, and quote values with spaces",
        )
        for flaw in {
            facts.line(one.start): one
            for one in reversed(
                [*_flaws(facts, "not-an-option", "blank-around-equals", "option-without-value")]
            )
        }.values()
    ]


@rule(
    "short-option-equals",
    "error",
    "the = becomes part of the value, which sbatch refuses or uses unchanged.",
    "getopt(3)",
)
def short_option_equals(facts: LintFacts) -> Hits:
    equals = {
        flaw: facts.text.find("=", flaw.start) for flaw in _flaws(facts, "short-option-equals")
    }
    return [
        RuleHit(
            flaw.start,
            f"{flaw.text}: the value begins with =",
            f"write: {flaw.hint}",
            edits=[(at, at + 1, " ")],
        )
        for flaw, at in equals.items()
    ]


@rule(
    "directive-twice",
    "warning",
    "the last one silently overrides the others.",
    "sbatch(1)",
)
def directive_twice(facts: LintFacts) -> Hits:
    every = facts.block.options
    for begin, end in itertools.pairwise([*facts.block.component_starts, len(every)]):
        seen: dict[str, Directive] = {}
        for option in every[begin:end]:
            first = seen.setdefault(option.name, option)
            if (
                option.name not in frozenset({"mail-type", "verbose"})
                and first.value != option.value
                # The second may add the type; other lines in comments are a block that is switched.
                and first.value != re.sub(r"[A-Za-z][\w-]*:(?=\d)", "", option.value or "")
                and not re.search(r"\n##+\s*SBATCH", facts.text[first.start : option.start])
            ):
                yield RuleHit(
                    option.start,
                    f"--{option.name} is {option.value!r} here and {first.value!r} in line"
                    f" {first.line}",
                    f"write: --constraint='{first.value}&{option.value}'"
                    if option.name == "constraint"
                    else f"keep one of the two lines, {first.line} or {option.line}",
                )


_PLACEHOLDER = (
    r"[^#\n]*?(?P<at><[A-Za-z][^<>\n]*>|\{\{.*?\}\}|(?<!\$)\{ ?[A-Za-z_]\w* ?\}|\{%"
    r"|(?<==)#{3,}\w+|(?<==)\*\w+\*|/path/to/\S*)"
)

rule(
    "template",
    "note",
    "sbatch uses the placeholder as the value; lines that contain one are not checked.",
    "sbatch(1)",
    once=True,
)(
    pattern(
        f"-{_PLACEHOLDER}",
        r"the directives hold placeholders, such as \g<at>",
        r"replace \g<at> by the value",
    )
)


def placeholder_lines(facts: LintFacts) -> set[int]:
    """Return the line numbers of directives with a placeholder."""
    return {
        facts.line(match.start())
        for match in re.finditer(
            rf"(?m)^#SBATCH[ \t]{_PLACEHOLDER}", facts.text[: facts.block.ends]
        )
    }


# ---- GPUs, memory, tasks -------------------------------------------------------------------------


@rule(
    "two-gpu-dialects",
    "error",
    "Slurm 26.05 refuses the two together; earlier versions accept them.",
    "Slurm commit 1a2bc58796",
    since=(26, 5),
)
def two_gpu_dialects(facts: LintFacts) -> Hits:
    gres, per_node = facts.options.get("gres"), facts.options.get("gpus-per-node")
    if gres and per_node and facts.gres_gpus is not None and not facts.block.hetjobs:
        yield RuleHit(
            gres.start,
            f"both --gres={gres.value} and --gpus-per-node={per_node.value}",
            "remove --gpus-per-node"
            if "," in (gres.value or "")
            else "keep one of the two, best --gpus-per-node (it also sets SLURM_GPUS_PER_NODE)",
            "error" if facts.slurm else "warning",
        )


@rule(
    "gpus-is-total",
    "warning",
    "the nodes may get different numbers of GPUs, and a launcher needs the same on each.",
    "sbatch(1) --gpus",
)
def gpus_is_total(facts: LintFacts) -> Hits:
    total = facts.options.get("gpus")
    others = {"gpus-per-task", "gpus-per-socket", "ntasks-per-gpu", "exclusive"} & set(
        facts.options
    )
    if total and facts.least_nodes > 1 and not others and facts.gres_gpus is None:
        yield RuleHit(
            total.start,
            f"--gpus={total.value} is the total of all nodes, spread as Slurm likes",
            "remove --gpus" if "gpus-per-node" in facts.options else "write: --gpus-per-node=N",
        )


#: A short job, or a script without data loaders, by its name.
_LIGHT = re.compile(
    r"\n#SBATCH[^\n]*[ \t](?:--time[= ]|-t[= ]?)[\"']?(?:(?:0+-)?0*(?:0:[0-2]\d|0:30)(?::\d+)?|(?:[0-2]?\d|30)"
    r"(?::\d\d)?)(?=[\s\"'])|"
    r"python[\d.]*[ \t]+(?:-u[ \t]+|-m[ \t]+)?[\w./]*(?:metric|render|sanity|plot|analy[sz]|visuali|demo|infer|convert"
    r"|smoke|benchmark|generat)\w*(?:\.py)?(?=\s|\Z)|"
    # Sites that give cores with each GPU, or whole nodes.
    r"\n#[^\n]*\b(?:CPUs?|cores)\b[^\n]*\bper GPU|"
    r"\n#SBATCH[^\n]*[ \t](?:(?:--partition|-p)[= ]?(?:qgpu|\S*[ah][1-4]0)|--environment[= ]"
    r"|(?:--constraint|-C)[= ]?[\"']?gpu(?:&\S+)?[\"']?\s)"
)


#: A training with data loaders, by its name or options.
_TRAINS = re.compile(
    r"\n[^#\n]*(?:python[\d.]*|torchrun|launch)[ \t][^\n]*?(?:\\\n[^\n]*?){0,3}"
    r"(?:train(?!\w*/)|tun(?:e|ing)_|clf|classif|finetun|fine_tun|pretrain)\w*"
    r"|num_?workers[= ][1-9]"
)


@rule(
    "gpu-without-cores",
    "note",
    "without --cpus-per-task a task gets one core, unless the partition has a default; data loaders"
    " then starve the GPUs.",
    "sbatch(1) --cpus-per-task; slurm.conf(5) DefCpuPerGPU",
)
def gpu_without_cores(facts: LintFacts) -> Hits:
    tasks = facts.count("ntasks-per-node") or facts.count("ntasks") or 1
    one = 1 in (facts.count("cpus-per-task"), facts.count("cpus-per-gpu"))
    few = (facts.count("cpus-per-task") == 1 and (facts.gpus_per_node or 0) > tasks) or (
        one and _TRAINS.search(facts.text) is not None
    )
    told = (
        {"cpus-per-task", "cpus-per-gpu", "exclusive", "mincpus", "cores-per-socket"}
        & set(facts.options)
        - {name for name in ("cpus-per-task", "cpus-per-gpu") if few and facts.count(name) == 1}
        or facts.block.hetjobs
        or is_ours(facts)
        or (facts.steps and all(step.has("cpus-per-task") for step in facts.steps))
    )
    bound = {"gpus-per-task", "ntasks-per-gpu"} & set(facts.options)
    # Without srun, the only process has the cores of all tasks.
    most = (facts.gpus_per_node or 1) * 2 if facts.steps else 1
    meant = "$" in (facts.value("ntasks-per-node") or "") or (not bound and tasks > most)
    asking = [one.start for one in facts.block.options if one.name in (*GPU_OPTIONS, "gres")]
    steps = [
        one.at.start
        for one in facts.steps
        if one.has(*GPU_OPTIONS) and not one.has("cpus-per-task")
    ]
    if (facts.asks_gpus or steps) and not (told or meant or _LIGHT.search(facts.text)):
        yield RuleHit(
            min(asking or steps),
            f"the job requests GPUs and {'one core' if few else 'no cores'} for a task",
            f"write: #SBATCH --cpus-per-{'gpu' if 'cpus-per-gpu' in facts.options else 'task'}=8",
        )


@rule(
    "gpu-partition-without-gpus",
    "warning",
    "a job in a partition of GPU nodes gets the GPUs that it requests, so that without a request"
    " its programs see none, unless the site gives whole nodes.",
    "sbatch(1) --gpus; slurm.conf(5) GresTypes",
)
def gpu_partition_without_gpus(facts: LintFacts) -> Hits:
    asked = facts.asks_gpus or any(step.has("gres", *GPU_OPTIONS) for step in facts.steps)
    named = re.search(
        r"(?<!no)(?<!no[-_])gpu|^[ahv][12]00(?!\w)", facts.value("partition") or "", re.IGNORECASE
    )
    told = (
        {"exclusive", "gres"} & set(facts.options)
        or facts.block.hetjobs
        # TACC gives whole nodes.
        or re.search(r"/(?:work2?|scratch\d?|home1)/\d{5}/|\bibrun\b|(?i:tacc)", facts.text)
        or re.match(r"gpu-a100(?:-dev|-small)?\Z|gh(?:-dev)?\Z", facts.value("partition") or "")
    )
    # Some sites have no GPU directive; hpctrain omits it only if the profile says so.
    silent = not named or told or is_ours(facts) or not any(map(works, facts.commands))
    # The others have no effect without GPUs.
    found = [
        facts.options[name]
        for name in ("cpus-per-gpu", "mem-per-gpu", "gpu-bind", *([] if silent else ["partition"]))
        if name in facts.options and "exclusive" not in facts.options
    ]
    for option in found[:1] if not asked else ():
        yield RuleHit(
            option.start,
            f"{option.written} {option.value} and no GPU directive",
            "add: #SBATCH --gpus-per-node=1",
            # Sites that give GPUs without a request for them give whole nodes.
            "note" if option.name == "partition" and facts.least_nodes > 1 else None,
        )


@rule(
    "exclusive-options",
    "error",
    "sbatch refuses the script: the options are mutually exclusive.",
    "sbatch(1) --mem, --cpus-per-gpu",
)
def exclusive_options(facts: LintFacts) -> Hits:
    for names in (_MEMORY_OPTIONS, ("cpus-per-task", "cpus-per-gpu")):
        both = [facts.options[name] for name in names if name in facts.options]
        if len(both) > 1 and not facts.block.hetjobs:
            yield RuleHit(
                max(option.start for option in both),
                f"{' and '.join(option.written for option in both)} are mutually exclusive",
                "keep one of them",
            )


@rule(
    "ntasks-and-per-node",
    "warning",
    "together with --ntasks, --ntasks-per-node is only a maximum; more tasks than fit are refused.",
    "sbatch(1) --ntasks-per-node",
)
def ntasks_and_per_node(facts: LintFacts) -> Hits:
    tasks, per_node = facts.count("ntasks"), facts.count("ntasks-per-node")
    product = (facts.nodes or 0) * (per_node or 0)
    placed = {"nodes", "ntasks-per-node", "nodelist"} & set(facts.options)
    if tasks and tasks == facts.gpus_per_node != 1 and not placed:
        yield RuleHit(
            facts.options["ntasks"].start,
            f"{tasks} tasks and {tasks} GPUs per node, and no --nodes",
            "add: #SBATCH --nodes=1",
            "note",
            "Slurm may spread the tasks over several nodes, each with as many GPUs.",
        )
    spread = {"ntasks-per-node", "exclusive", "distribution", "mincpus"} & set(facts.options)
    nodes = facts.nodes or tasks
    if (
        tasks
        and nodes
        and 1 < nodes < tasks
        and not spread
        and re.search(r"\b(?:srun|mpi\w+)\b", facts.text)
        and (tasks % nodes == 0 or "gpu" in facts.text.lower())
    ):
        yield RuleHit(
            facts.options["ntasks"].start,
            f"{tasks} tasks and {nodes} nodes, and no --ntasks-per-node",
            f"write: #SBATCH --ntasks-per-node={-(-tasks // nodes)}"
            + (", and remove --ntasks" if tasks % nodes else ""),
            "note",
            "where nodes are shared, Slurm may put most tasks on one of them."
            if tasks % nodes == 0
            else "the nodes get different numbers of tasks, and the ranks on a node do not match its GPUs.",
        )
    if tasks and product and tasks != product:
        yield RuleHit(
            facts.options["ntasks"].start,
            f"--ntasks={tasks}, but {facts.nodes} nodes x {per_node} tasks are {product}",
            "remove --ntasks",
            "error" if tasks > product else "warning",
        )


#: Nothing in the script is known to train.
_NO_TRAINING = (
    r"\A(?![\s\S]*\b(?:srun|python\d?|torchrun|accelerate|deepspeed|singularity|apptainer)\b)"
)

# ---- values --------------------------------------------------------------------------------------


@rule(
    "invalid-value",
    "error",
    "sbatch refuses it: Invalid specification.",
    "sbatch(1) --time, --mem",
)
def invalid_value(facts: LintFacts) -> Hits:
    forms = (
        (_TIME, ("time", "time-min"), "HH:MM:SS"),
        (_MEMORY, _MEMORY_OPTIONS, "64G"),
        (re.compile("."), ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task"), "1"),
    )
    hits = {
        option.value: RuleHit(
            option.start,
            f"{option.written} cannot be {option.value!r}",
            f"write, for example: --{option.name}={good}",
        )
        for option in reversed(facts.block.options)
        for form, names, good in forms
        if option.name in names and re.match(r"(?:[^=$`][^$`]*)?\Z", option.value or "")
        if option.value is not None and not form.match(option.value)
    }
    return hits.values()


rule(
    "unit-missing",
    "warning",
    "a number alone is megabytes of memory; the job is killed early.",
    "sbatch(1) --mem",
)(
    pattern(
        r"--(mem|mem-per-gpu)[= ]([1-9]\d?|1\d\d|2[0-4]\d|25[0-6])(?=\s|\Z)",
        r"--\1 is \2 MB",
        r"write: --\1=\2G",
        unless=_NO_TRAINING,
    )
)

rule(
    "memory-small",
    "note",
    "python with torch or TensorFlow and a GPU needs 2 to 4 GB of host memory to start; above the limit"
    " the job is killed.",
    "sbatch(1) --mem",
)(
    pattern(
        r"--mem[= ]((?:[12]G|(?:[3-9]\d\d|[12]\d{3})M)B?)(?=\s|\Z)",
        r"\1 of memory for a job with GPUs",
        r"write: --mem=16G",
        unless=r"\A(?![\s\S]*\n#SBATCH[^\n]*(?:gres[= ]gpu|--gpus))"
        r"|\A(?![\s\S]*\n[^#\n]*\b(?:python[\d.]*|torchrun|accelerate|deepspeed)[ \t])",
    )
)

rule(
    "time-too-short",
    "note",
    "the order is hours, minutes, seconds, and a number alone is minutes; the job is killed early.",
    "sbatch(1) --time",
)(
    pattern(
        r"(?:--time[= ]|-t[= ]?)[\"']?(0-00?:0[0-9]:\d\d|[1-9]:00|(?:24|36|48|72|96|168)(?::00)?)(?=[\s\"']|\Z)",
        r"the time limit is \1",
        r"write hours as HH:00:00",
        unless=_NO_TRAINING,
    )
)

rule(
    "memory-per-node",
    "warning",
    "--mem is the memory of the node, for all tasks and cores together.",
    "sbatch(1) --mem, --mem-per-cpu",
)(
    pattern(
        r"--mem[= ](\S+)[ \t]+#[ \t]*(?:\w+[ \t]+){0,4}(?i:per[ -](?:cpu|core|task))",
        r"the comment takes --mem for the memory of a core",
        r"write: --mem-per-cpu=\1, or correct the comment",
    )
)

rule(
    "logs-swapped",
    "warning",
    "the error messages are in the file that is named like the output, and the output in the other.",
    "sbatch(1) --output, --error",
    once=True,
)(
    pattern(
        rf"(?:srun\b{REST}(?<=\s))?(?:--output[= ]|-o[= ]?)([\"']?[^\s\"']+\.err)\b",
        r"the output goes to \1",
        r"swap the names of --output and --error",
        unless=r"\A(?![\s\S]*\s(?:--error[= ]|-e[= ]?)\S+\.(?:out|log)\b)",
    )
)

rule(
    "array-id-unused",
    "note",
    "each task then runs the same commands and writes into the same files, unless the program itself"
    " reads SLURM_ARRAY_TASK_ID.",
    "sbatch(1) --array",
)(
    pattern(
        # A chain of jobs, one after the other, needs no number.
        r"(?:--array[= ]|-a[= ]?)[\"']?((?!(\d+)-\2(?!\d))\d+[-,][-,:%\d]*)(?<!%1)(?=[\s\"']|\Z)",
        r"--array=\1 starts several tasks, and no line uses their number",
        r'give it to the program, such as: --seed "$SLURM_ARRAY_TASK_ID"',
        # Those read it themselves, or take their work from a queue.
        unless=r"(?m)^(?!#)[^\n]*SLURM_ARRAY_TASK|^[ \t]*(?:source|\.)[ \t]|\b(?:R[ \t]+CMD"
        r"|Rscript|matlab|julia|agent"
        r"|optuna)\b|^(?!#)[^\n]*\bsrun[^\n]*%\d*a",
    )
)

rule(
    "pattern-in-text",
    "note",
    "Slurm replaces patterns in the names of its log files only; elsewhere the characters stay.",
    "sbatch(1) FILENAME PATTERN",
    once=True,
)(
    pattern(
        r"(?:(?:--job-name[= ]|-J[= ]?)[\"']?[^\s\"']*?"
        r"|(?:mkdir|cp|mv|cd|rm|touch|python[\d.]*|(?:export[ \t]+)?\w+=)"
        r"(?:(?!--output[= ]\S*%|--error|-[oe][ \t]|sbatch|srun|date|printf)[^\n#])*?[/_.=-])"
        r"(%[jJA](?:_%a)?)(?=[/_.\s\"'-]|\Z)",
        r"\1 is not in the name of a log",
        r"write $SLURM_JOB_ID in commands, and leave it out of --job-name",
    )
)

rule(
    "tasks-unplaced",
    "note",
    "--mem holds for each node, and Slurm chooses the number of nodes: the job waits for nodes with"
    " that much memory each, or gets it many times.",
    "sbatch(1) --ntasks, --mem",
)(
    pattern(
        r"(?:--ntasks[= ]|-n[= ]?)(3[2-9]|[4-9]\d|\d{3,})(?!\S)",
        r"\1 tasks on any number of nodes, and --mem for each of them",
        r"write --mem-per-cpu=4G in place of --mem, or add --nodes",
        unless=r"--nodes|\s-N|tasks-per-node|--nodelist|\s-w[ =]|--mem-per-cpu"
        r"|\A(?![\s\S]*#SBATCH[^\n]*--mem[= ][1-9])",
    )
)

rule(
    "dependency-fixed",
    "warning",
    "Slurm forgets jobs that have ended: sbatch then refuses the script, or the job never starts.",
    "sbatch(1) --dependency; slurm.conf(5) MinJobAge",
)(
    pattern(
        r"(?:--dependency[= ]|-d[= ]?)([\w:,?+]*:\d+)(?!\S)",
        r"the job waits for \1, a job of one day",
        r"remove the line, and: sbatch --dependency=afterok:JOBID SCRIPT",
    )
)

rule(
    "node-fixed",
    "note",
    "the job waits while that node is busy, reserved or down, although others are free.",
    "sbatch(1) --nodelist",
)(
    pattern(
        r"(?:--nodelist[= ]|-w[= ]?)([\w.-]*(?:\w|\[\d+\]))(?=\s|\Z)",
        r"the job runs on \1 only",
        r"remove it, or request what the node has: --constraint, --partition, --gpus-per-node=TYPE:N",
    )
)

rule(
    "nodelist-longer",
    "warning",
    "--nodelist requests all its nodes, and not one of them: Slurm refuses the job, or it waits for all"
    " and holds them.",
    "sbatch(1) --nodelist",
)(
    pattern(
        r"(?:--nodelist[= ]|-w[= ]?)([\w.-]*(?:,|\[\d+[,-])\S*)(?=\s|\Z)",
        r"--nodelist names several nodes, and --nodes is 1",
        r"remove it, or name the nodes to leave out: --exclude",
        unless=r"\A(?![\s\S]*\n#SBATCH[^\n]*\s(?:--nodes[= ]|-N[= ]?)1\s)",
    )
)

# ---- logs ----------------------------------------------------------------------------------------


def _logs(facts: LintFacts) -> list[tuple[Directive, str]]:
    names = ("output", "error")
    return [(facts.options[one], facts.value(one) or "") for one in names if one in facts.options]


@rule(
    "log-overwritten",
    "warning",
    "the tasks empty and overwrite the log of each other; %A_%a gives each a file.",
    "sbatch(1) FILENAME PATTERN",
    once=True,
)
def log_overwritten(facts: LintFacts) -> Hits:
    array = re.search(r"\D", facts.value("array") or "")  # `--array=0` is one task
    meant = "array" in facts.options or re.search(
        r"SLURM_ARRAY|\bsbatch\b[^\n]*\s(?:--array|-a)\b", facts.text
    )
    appends = facts.value("open-mode") in ("append", "a")
    for option, value in _logs(facts):
        fixed = value and not re.search(r"%\d*[jJar]|[$\\<{]|^/dev/", value)
        if array and fixed:
            yield RuleHit(
                option.start,
                f"every task of the array writes into {value}",
                f"write: --{option.name}=NAME_%A_%a.log",
            )
        elif fixed and not meant and not appends and "%A" not in value:
            yield RuleHit(
                option.start,
                f"every job writes into {value}",
                "write: "
                + " and ".join(
                    re.sub(r"(?<!%j)(\.\w+)?\Z", r"_%j\1", f"--{one.name}={name}", count=1)
                    for one, name in _logs(facts)
                ),
                "note",
                "the next job empties the log of this one.",
            )
        elif array and re.search(r"%\d*a", value) and not re.search(r"%\d*[jAJ]|[$<{]", value):
            if not appends:
                yield RuleHit(
                    option.start,
                    f"the next array writes into {value} as well",
                    "write: --"
                    + option.name
                    + "="
                    # Not in the name of a directory, which nobody makes.
                    + re.sub(
                        r"(?=%\d*a[^/]*\Z)|(?<=/)(?=[^/]*\Z)(?![^/]*%\d*a)", "%A_", value, count=1
                    ),
                    "note",
                    "it empties the logs of this one.",
                )
        elif re.search(r"%\d*a", value) and not meant:
            yield RuleHit(
                option.start,
                f"%a in {value}, and there is no --array",
                f"write: --{option.name}=NAME_%j.log",
                "note",
                "%a is then 4294967294.",
            )


rule(
    "exclusive-one-gpu",
    "note",
    "the job holds, and pays for, the whole node, and its programs see one GPU.",
    "sbatch(1) --exclusive",
    once=True,
)(
    pattern(
        r"--exclusive(?=\s|\Z)",
        r"a whole node for one GPU",
        r"remove --exclusive, or request all GPUs of the node",
        unless=r"\A(?![\s\S]*\n#SBATCH[^\n]*(?:--gres[= ]gpu|--gpus(?:-per-node)?[= ]|-G[ ]?)(?::?[a-z]\w*)?"
        r"(?::?1)?[ \t]*(?:#|\n))|\n#SBATCH[^\n]*(?:--nodes[= ]|\s-N[= ]?)(?!1\s)|--gpus-per-task"
        r"|(?:--partition|-p)[= ]\S*-1\s|\n#SBATCH[^\n]*-C[ ]gpu",
    )
)

rule(
    "requeue-truncates",
    "note",
    "a requeued job truncates its log, unless --open-mode=append, so the first "
    "run's errors are lost.",
    "sbatch(1) --open-mode; slurm.conf(5) JobFileAppend",
    once=True,
)(
    pattern(
        r"--requeue\b",
        r"a requeue empties the log",
        r"add: #SBATCH --open-mode=append",
        unless=r"(?m)^#SBATCH.*\s--(?:open-mode[= ]a|no-requeue|output[= ]\S*%r)",
    )
)


@rule(
    "log-directory",
    "note",
    "Slurm opens the log before the script starts: before 23.02 a missing directory ends the job"
    " with 0:53 and no log.",
    "Slurm commit ecc671a141",
    until=(23, 2),
    once=True,
)
def log_directory(facts: LintFacts) -> Hits:
    itself = (one for _, one in facts.variables("0", "BASH_SOURCE") if one.name not in TALKERS)
    if (
        is_ours(facts)
        or any("sbatch" in facts.shown(one) for one in itself)
        # The header may tell the reader to make it.
        or re.search(r"(?m)^#(?!SBATCH)[^\n]*\bmkdir\b", facts.text)
    ):
        return
    for option, value in _logs(facts):
        folder = value.rpartition("/")[0].removeprefix("./").rstrip("/")
        makes = [one for one in facts.named("mkdir") if _makes(facts, one, folder)]
        # The directory of the script, and the two above it: one may be the project's.
        if any(folder and os.access(one / folder, os.W_OK) for one in Path(facts.file).parents[:3]):
            continue
        relative = folder.strip("./") and not folder.startswith(("/", "~"))
        if makes and folder and makes[0].place == "batch":
            yield RuleHit(
                makes[0].start,
                f"{folder} is made by the job whose --{option.name} needs it",
                f"before sbatch: mkdir -p {folder}",
                "warning",
            )
        elif (relative or re.search(r"%\d*[jJA]", folder)) and not makes and "$" not in folder:
            yield RuleHit(
                option.start,
                f"nothing here makes {folder} for the log",
                "write: "
                + " and ".join(
                    f"--{one.name}="
                    + re.sub(r"/" if relative else r"(?<=%[jJA])/", "_", path.removeprefix("./"))
                    for one, path in _logs(facts)
                )
                if "%" in folder
                else "before sbatch: mkdir -p "
                + " ".join(
                    dict.fromkeys(
                        shell.quote(path.rpartition("/")[0])
                        for _, path in _logs(facts)
                        if "/" in path
                    )
                ),
            )


_HERE = re.compile(r"^(?:\./|\$\{?(?:SLURM_SUBMIT_DIR|PWD)\}?/|\$\(pwd\)/)")


def _makes(facts: LintFacts, command: SimpleCommand, folder: str) -> bool:
    """Whether `mkdir` makes `folder`, named from here or as the end of an absolute path."""
    made = [f"/{_HERE.sub('', word.text).rstrip('}')}/" for word in command.argv[1:]]
    above = ["?", *folder.split("/")]
    return any(
        # A directory inside an absolute one does not say that this is missing.
        (one.startswith(f"/{folder}/") and (one == f"/{folder}/" or folder[:1] != "/"))
        or f"/{folder}/".endswith(one)
        # Relative, and the end of a path with a variable or of an absolute one.
        or re.search(rf"[\w-]+/{re.escape(folder)}/\Z", one)
        or re.search(
            rf"(?:\$\{{?\w*(?:ROOT|REPO|SCRIPT|PROJECT|BASE)\w*\}}?|pwd\)|_DIR:-[^{{}}]*\}})/{re.escape(folder)}/\Z",
            one,
        )
        # The end of both is the same, and the script names the directory above it.
        or (
            f"/{above[-1]}/" == re.sub(r".*\$\{?\w+\}?", "", one)
            and re.search(rf"/{re.escape(above[-2])}\b", facts.text[facts.block.ends :])
        )
        for one in made
    )
