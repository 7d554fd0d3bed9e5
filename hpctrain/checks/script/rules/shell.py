"""Rules about pitfalls of the shell: lost exit codes, variables and environments, misleading paths,
and signals and their receivers.
"""

from __future__ import annotations

import re
from itertools import pairwise, product, zip_longest

from hpctrain.checks.script.calls import CONTAINERS, SHELLS
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.model import Element, Scope, ShellWord, SimpleCommand
from hpctrain.checks.script.rule import (
    HARMLESS,
    REST,
    TALKERS,
    TESTS,
    Hits,
    RuleHit,
    in_another_branch,
    option_on,
    pattern,
    rule,
    sources,
    works,
)
from hpctrain.slurm.notations import signals
from hpctrain.util import secrets

#: Loads modules that do not bring conda; or a placeholder.
_OTHER_MODULES = re.compile(
    r"(?:module|ml)\s+(?:purge|list|unload .*|(?:load|add)"
    r"(?:\s+(?:cuda|cudnn|nccl|gcc|openmpi|cmake|git)(?![a-z])[^\s;]*)+)\s*\Z|(?:source|\.)\s+/path/to/",
    re.IGNORECASE,
)
#: Slurm signals the tasks, unless the batch shell is named.
_SENDS = re.compile(
    r"\bscancel\b(?![^;|&]*(?:--batch|\s-\w*b))[^;|&]*?(?:-s\s*|--signal[= ]|-)(?:SIG)?USR[12]\b"
)


# ---- exit codes ----------------------------------------------------------------------------------

#: Programs after a training whose exit code does not depend on the training's.
_AFTERWARDS = re.compile(
    r"(?:echo|printf|date|cp|mv|rm|kill|conda|mamba|deactivate|set|rsync|touch|sync|sleep|mkdir|pwd"
    r"|ls|cat|find|tar|chmod|unset|module|ml|cd|df|du|seff|sacct|nvidia-smi|rocm-smi|dcgmi|true|:"
    r"|uname|hostname|whoami|uptime|free|wc|tail|head|zip|gzip|git|mailx?|sendmail|curl|scontrol|squeue|sstat"
    r"|popd|pushd|pkill|killall|aws|rclone|gsutil|mutt|sbatch|sha256sum|md5sum)\Z"
)
_TRAINING_PROGRAMS = re.compile(
    r"(?:papermill|jupyter|vllm|uvicorn|ollama|Rscript|julia|go|java|cargo|matlab|octave|perl|ruby|node|npm"
    r"|make|snakemake|nextflow|wandb|dvc|gmx|gmx_mpi|lmp\w*|namd\d|vasp\w*|cp2k\S*|pw\.x|orca|blender|ffmpeg"
    r"|flwr|allennlp|pmemd\S*|sander\S*|kernprof|w_run|g16|R"
    r"|colabfold_batch|boltz|bwa|samtools|minimap2|STAR|ns-train|nnUNetv2_predict|spark-submit)\Z"
)
#: Scripts that prepare the work, by their names.
_PREPARES = re.compile(
    r"(?:\b|_)(?:v?env|environment|setup|install|init|activate|prepare|modules|cleanup)(?:\b|_)"
    r"[^/]*\Z",
    re.IGNORECASE,
)
_SMALL = re.compile(
    r"^(?!(?:ba|z)?sh )\S+ -(?:c|V|-version)?(?:\s|\Z)|-m (?:pip|venv|ensurepip)\b|pip3? |uv (?:sync|venv|pip)\b"
    r"|(?:singularity|apptainer) pull|(?:rocm|nvidia)-smi|wandb (?:login|offline|online|sync|disabled)\b"
)
_INSTALLS = re.compile(r"(?:srun[ \t]+)?(?:uv[ \t]+)?pip3?[ \t]+install\b")
#: rm fails where there is nothing to remove.
_REMOVES = re.compile(r"(?m)^[ \t]*rm[ \t]+(?!-\w*f)")
_GIVES_UP = ("exit", "return", "false", "exec", "kill")


def _runs_script(command: SimpleCommand) -> bool:
    file = next((word.text for word in command.words[1:] if word.text[:1] not in ("-", "+")), "")
    return (
        command.name in ("bash", "sh")
        and bool(file)
        and (file.endswith(".sh") or "$" not in file)
        and not _PREPARES.search(file)
    )


def _is_condition(facts: LintFacts, command: SimpleCommand) -> bool:
    return (
        command.after in ("||", "&&")
        or re.search(
            r"(?:\b(?:if|elif|while|until)|(?<![$\w])!)\s+\Z",
            facts.text[max(0, command.start - 200) : command.start],
        )
        is not None
    )


def _is_ignored(command: SimpleCommand, following: SimpleCommand | None) -> bool:
    """Whether a failure of `command` has no other effect than a message: `… || echo failed`."""
    return (
        command.after == "||"
        and following is not None
        and following.scope is command.scope
        and following.name in TALKERS
        and following.after != "&&"
    )


def _workers(facts: LintFacts) -> set[SimpleCommand]:
    """Return the commands that do the work: directly, in a shell, or in a function that they call,
    unless that looks at its end itself.
    """
    functions = {
        scope.name
        for scope, body in facts.inside.items()
        if scope.kind == "function"
        if not any(
            (one.name in _GIVES_UP and one.words[-1].text not in ("0", "return"))
            or _reads_status(one)
            for one in body
        )
        if any(works(one) and not _is_condition(facts, one) for one in body)
    }
    return {
        one
        for one in facts.commands
        if any(map(works, facts.started_by.get(one, ())))
        or _works_long(one, calls_work=one.name in functions)
    }


def _works_long(command: SimpleCommand, *, calls_work: bool) -> bool:
    program = command.words[0] if command.words else ShellWord("", 0, 0)
    built = re.match(
        r"(?:(?:\.{1,2}|\$\{?\w+\}?)/|/(?!bin/|usr/))\S+\Z", program.text
    ) and not _AFTERWARDS.match(program.program)
    built = built and not _PREPARES.search(program.text)
    idle = command.name in CONTAINERS and command.words[-1].program in SHELLS
    known = (
        works(command)
        or _runs_script(command)
        or _TRAINING_PROGRAMS.match(command.name)
        or built
        or command.call
        or calls_work
        or (command.name == "wait" and len(command.words) == 2)
    )
    words = command.call.rest if command.call else command.words
    line = " ".join(word.program for word in words)
    small = _SMALL.search(line) or (command.call and command.call.starts in HARMLESS - {"env"})
    # A warm-up.
    return bool(known and not small and not idle) and not any(
        operator in (">", "&>") and to.text == "/dev/null" for operator, to in command.redirects
    )


def _reads_status(command: SimpleCommand) -> bool:
    words = [*command.words, *(one.word for one in command.assignments)]
    parts = (part for word in words for part in word.expansions())
    return any(part.kind == "var" and part.text in ("?", "PIPESTATUS") for part in parts)


@rule(
    "pipefail-missing",
    "warning",
    "without pipefail a pipe ends with the code of its last command, so a failed training is"
    " COMPLETED to Slurm, and to afterok.",
    "bash(1) Pipelines",
)
def pipefail_missing(facts: LintFacts) -> Hits:
    workers = _workers(facts)
    for command in facts.commands if "PIPESTATUS" not in facts.text else ():
        ends = command.pipe_next is None and command.scope.inside("$(") is None
        worker = _piped_worker(facts, command.pipe_prev, workers) if ends else None
        if (
            worker is not None
            and not _is_condition(facts, worker)
            and not option_on(facts, "pipefail", command.shell, command.start)
        ):
            yield RuleHit(
                command.start,
                f"the exit code of {worker.name or 'the training'} is lost in the pipe to"
                f" {command.name}",
                "write above it: set -o pipefail"
                if option_on(facts, "errexit", command.shell, command.start)
                or "$?" in facts.text[command.end :]
                or command is facts.commands[-1]
                else "write above it: set -eo pipefail",
            )


def _piped_worker(
    facts: LintFacts, element: Element | None, workers: set[SimpleCommand]
) -> SimpleCommand | None:
    while isinstance(element, SimpleCommand) and element not in workers:
        element = element.pipe_prev
    if isinstance(element, SimpleCommand):
        return element
    inside = facts.inside.get(element, ()) if isinstance(element, Scope) else ()
    return next(filter(works, inside), None)


@rule(
    "work-in-background",
    "error",
    "the job ends with the batch script, and Slurm then kills what still runs.",
    "sbatch(1); bash(1) wait",
)
def work_in_background(facts: LintFacts) -> Hits:
    own = [one for one in facts.commands if one.shell is facts.batch and one.words]
    workers = _workers(facts)
    work = [one for one in own if one.is_background and one in workers]
    for last in work[-1:] if facts.is_batch and not any(facts.named("wait")) else ():
        ends = all(
            _AFTERWARDS.match(one.name)
            and one.scope.kind == "file"
            # A few seconds are no wait for the work.
            and (one.name != "sleep" or re.match(r"\ds?\Z", one.words[-1].text))
            for one in own
            if one.start > last.start and one not in work
        )
        if ends and last.scope.inside("function", "$(") is None:
            yield RuleHit(
                last.start,
                f"{last.name or 'the step'} runs in the background, and nothing waits for it",
                "write below it: wait",
            )


@rule(
    "wait-without-pid",
    "warning",
    "wait without a process id returns 0 whatever the processes returned: a failed step is COMPLETED"
    " to Slurm, and steps that need it wait for it until they time out.",
    "bash(1) wait",
)
def wait_without_pid(facts: LintFacts) -> Hits:
    working = [*_workers(facts), *facts.named("ssh")]
    first_start = {
        one.shell: one.start
        for one in sorted(working, key=lambda one: -one.start)
        if one.is_background
    }
    return [
        RuleHit(
            wait.start,
            "wait without a process id returns 0 even when a step failed",
            'pids+=($!) after each &; here: for pid in "${pids[@]}"; do wait "$pid" || status=$?;'
            ' done; and as the last line: exit "${status:-0}"',
        )
        for wait in facts.named("wait")
        if first_start.get(wait.shell, wait.start) < wait.start
        if len(wait.words) == 1 and "wait -n" not in facts.text
    ]


def _is_handled(ends: list[SimpleCommand], following: SimpleCommand | None) -> bool:
    """Whether the next command reads the exit code, other than to test it without one of `ends`."""
    if following is None or not _reads_status(following):
        return False
    return (bool(following.words) and following.name not in TESTS | TALKERS) or any(
        # Where another failure ends the job, this one is only reported on purpose.
        one.start >= following.start
        or (one.name in ("exit", "return") and not following.words and any(one.expansions()))
        for one in reversed(ends)
    )


@rule(
    "exit-code-lost",
    "warning",
    "a batch script ends with the exit code of its last command, so a training that failed is"
    " COMPLETED to Slurm, and to afterok.",
    "sbatch(1); bash(1) EXIT STATUS",
)
def exit_code_lost(facts: LintFacts) -> Hits:
    own = [
        one
        for one in facts.commands
        if one.shell is facts.batch and one.scope.inside("function", "$(") is None
    ]
    # Not a Python comment, which bash cannot run; `exit` alone keeps the code.
    steps = [
        one
        for one in own
        if one.words and not facts.text.startswith(('"""', "'''"), one.start)
        if one.name != "exit" or len(one.words) > 1
    ]
    traps = [one for one in facts.named("trap") if {"EXIT", "ERR", "0"} & set(_trapped(one))]
    # What a trap runs: a text, or a function.
    caught = any(
        re.search(r"\bexit\s+[\"']?[$1-9]|\$\?", text)
        for one in traps
        for text in (
            one.words[1].text,
            *re.findall(rf"{re.escape(one.words[1].text)}\s*\(\)[\s\S]*?\n\}}", facts.text),
        )
    )
    if not facts.is_batch or not steps or caught:
        return
    installs = {one for one in own if _INSTALLS.match(facts.text, one.start)}
    workers = _workers(facts) or (set() if steps[-1] in installs else installs)
    ends = [
        one
        for one in facts.commands
        if one.name in _GIVES_UP
        or (one.name in ("scancel", "scontrol") and "SLURM_JOB" in facts.shown(one))
    ]
    trained = [
        one
        for one, following in zip_longest(own, own[1:])
        if one.words and one in workers and not _is_handled(ends, following)
        if not (one.name == "exec" or one.is_background or one.pipe_next)
        if not any(scope.pipe_next for scope in one.scope.chain())  # for pipefail-missing
        if not _is_condition(facts, one) or _is_ignored(one, following)
        if not option_on(facts, "errexit", facts.batch, one.start) or one.after == "||"
    ]
    last = steps[-1]
    shown = " ".join(word.text for word in last.words[:2])
    ends_well = (
        shown in ("exit 0", "wait")
        or _AFTERWARDS.match(last.name)
        or _SMALL.search(
            " ".join(word.program for word in (last.call.rest if last.call else last.words))
        )
    )
    if (
        trained
        and last not in trained
        and ends_well
        and not in_another_branch(facts, trained[-1], last)
    ):
        lines = dict.fromkeys(str(facts.line(one.start)) for one in trained[:8])
        yield RuleHit(
            trained[0].start,
            (
                f"a step may fail (lines {', '.join(lines)})"
                if len(lines) > 1
                else f"{trained[0].name or 'the training'} may fail"
            )
            + f", and the job ends with the code of: {shown}",
            'after it: status=$?, and as the last line: exit "$status"'
            if len(trained) == 1
            else "above the first step: set -e"
            + (
                "; and write rm -f"
                if _REMOVES.search(facts.text, trained[0].start, trained[-1].start)
                else ""
            ),
        )
    alone = [one for one in trained if not in_another_branch(facts, one, last)]
    if alone and alone[-1] is last and (len(alone) > 1 or last.scope.inside("loop")):
        yield RuleHit(
            alone[0].start,
            "the last step alone decides whether the job has failed",
            "write above it: set -e",
            "note",
        )


@rule(
    "status-under-errexit",
    "warning",
    "set -e ends the script when the command fails, so the line that saves its "
    "exit code, and everything after it, only runs on success.",
    "bash(1) set -e",
)
def status_under_errexit(facts: LintFacts) -> Hits:
    for before, command in pairwise(facts.commands):
        keeps = not command.words and _reads_status(command)
        here = before.scope is command.scope and before.shell is command.shell
        plain = before.words and before.after in ("\n", ";") and not before.conditional
        outside = command.scope.inside("$(") is None and not before.is_background
        kept = keeps and here and plain and outside and not before.name.startswith(("[", "set"))
        if kept and option_on(facts, "errexit", command.shell, command.start):
            name = command.assignments[0].name
            yield RuleHit(
                command.start,
                f"{name}=$? is reached only when {before.name or 'the command'} succeeded",
                f"{name}=0; {before.name or 'COMMAND'} … || {name}=$?"
                + (
                    ""
                    if re.search(rf"\b(?:exit|return)\s+[\"']?\$\{{?{name}\b", facts.text)
                    else f', and as the last line: exit "${name}"'
                ),
            )


rule(
    "scancel-own-job",
    "warning",
    "the job ends as CANCELLED, also when the training succeeded, and jobs that wait for it with"
    " afterok never start.",
    "scancel(1); sbatch(1) --dependency",
)(
    pattern(
        r"scancel\b(?![^\n]*\s(?:-s|--signal))[^\n]*\$\{?SLURM_JOB_?ID\b[^\n]*\s*\Z",
        r"the script ends by canceling its own job",
        r"remove the line: the job ends with the script",
    )
)

rule(
    "prompt-unanswered",
    "warning",
    "a batch job has no terminal: the question gets no answer, and the command ends.",
    "sbatch(1) --input",
)(
    pattern(
        r"(?<!\| )(?:\S*/)?((?:conda|mamba|micromamba) (?:create|install|remove|uninstall|update)\b"
        rf"|pip3? uninstall\b)(?!{REST}(?:\s(?:-[a-z]*y|--yes|--dry-run|--help)|<))",
        r"\1 asks a question",
        r"write: \1 --yes",
        unless="(?i)always_yes",
    )
)


_ASSIGNMENT_WITH_BLANK = pattern(
    r"(export[ \t]+)?([A-Za-z_]\w*)[ \t]+=(?=\s|\Z)[ \t]*([^\n]*)"
    r"|()\$([A-Za-z_]\w*)=(?=\")([^\n]*)"
    r"|()([A-Za-z_]\w*)=[ \t]+((?:\d+|\"[^\"$\n]*\"|'[^'\n]*')[ \t]*(?=\n|\Z))",
    r"a blank too few or too many: \g<0>",
    r"write: \1\4\7\2\5\8=\3\6\9",
    # What follows `exec` in a file of two languages is not for bash.
    unless=r"(?m)^[ \t]*exec[ \t]",
)
#: What stands in a test without a bracket: quoted texts are whole.
_IN_TEST = r"""(?:"[^"\n]*"|'[^'\n]*'|\$\{[^}\n]*\}|\$(?![{(])|[^]"'\n$`])"""
_TEST_WITHOUT_BLANK = pattern(
    rf"\[(?!\[)(?:(?=\S)({_IN_TEST}*)\]|(?=\s)({_IN_TEST}*)(?<=[^\s\[])\])",
    r"a blank too few or too many: \g<0>",
    r"write: [ \1\2 ]",
    unless=r"(?m)^[ \t]*exec[ \t]",
)


rule(
    "blank-misplaced",
    "error",
    "bash takes the first word for a command: command not found. The variable stays empty, or the"
    " test is false.",
    "bash(1) PARAMETERS, CONDITIONAL EXPRESSIONS",
)(lambda facts: (*_ASSIGNMENT_WITH_BLANK(facts), *_TEST_WITHOUT_BLANK(facts)))


@rule(
    "not-exported",
    "warning",
    "srun and the programs that the script starts get exported variables alone.",
    "bash(1) ENVIRONMENT",
    once=True,
)
def not_exported(facts: LintFacts) -> Hits:
    exporting = facts.named("export", "declare", "typeset")
    exported = {name for one in exporting for name in re.findall(r"\w+", facts.shown(one))}
    parts = (
        part
        for command in facts.commands
        if command.name not in TALKERS or command.redirects
        for part in command.expansions()
    )
    read = {part.text for part in parts if part.kind == "var"}
    for assignment, command in facts.assigned() if "set -a" not in facts.text else ():
        name, alone = assignment.name, not command.words and command.place == "batch"
        # Launchers set the names of the rendezvous themselves.
        launched = name.startswith(("MASTER_", "WORLD_")) and (facts.launches or not facts.steps)
        known = not facts.is_batch or launched or name in exported | read
        if alone and not known and _FOR_PROGRAMS.match(name):
            yield RuleHit(assignment.start, f"{name} is not exported", f"write: export {name}=…")


#: Variables that programs read, and that neither Slurm nor a usual login sets.
_FOR_PROGRAMS = re.compile(
    r"(?:MASTER_\w+|WORLD_SIZE|OMP_NUM_THREADS|TOKENIZERS_PARALLELISM"
    r"|(?:NCCL|TORCH|PYTORCH|TRANSFORMERS|GLOO)_\w+|HF_(?:HOME|TOKEN|HUB|DATASETS)\w*"
    r"|WANDB_(?:API_KEY|PROJECT|MODE|ENTITY|DIR|NAME|DISABLED|RUN\w*))\Z"
)


@rule(
    "continuation-missing",
    "error",
    "without a backslash at the end of the line above, the command ends there, and runs without"
    " these words.",
    "bash(1) QUOTING",
    once=True,
)
def continuation_missing(facts: LintFacts) -> Hits:
    for before, command in pairwise(facts.commands):
        text = facts.text[max(0, command.start - 400) : command.start]
        above = text.rstrip().rpartition("\n")[2]
        word = command.words[0].text if command.words else ""
        option = re.match(r"--?[A-Za-z]", word) and not command.assignments
        # A container command with options on separate lines ends without an image.
        image = word.endswith((".sif", ".sqsh", ".simg")) and "\\\n" in facts.shown(before)
        alone = not word and any(operator == ">&" for operator, _ in command.redirects)
        misses = (
            option
            or image
            or (alone and not command.assignments)
            # A blank behind the backslash.
            or re.search(r"(?m)^[ \t]*[^#\s][^#\n]*[ \t]\\[ \t]+\n[ \t]+\Z", text)
        )
        if misses and not above.startswith("#SBATCH"):  # directives have no line continuation
            yield RuleHit(
                command.start,
                f"{word or 'a redirection'} begins a command of its own",
                "remove the blanks behind the backslash of the line above"
                if above.endswith("\\")
                else "write a backslash at the end of the line above",
                "warning" if alone else "error",
            )


@rule(
    "pythonbuffered",
    "warning",
    "Python reads PYTHONUNBUFFERED; without it the log is written in blocks, and "
    "the last block is lost if the job is killed.",
    "python(1)",
)
def pythonbuffered(facts: LintFacts) -> Hits:
    for assignment, _ in facts.assigned(name := "PYTHONBUFFERED"):
        # A second occurrence may read the variable.
        alone = len(re.findall(rf"\b{name}\b", facts.text)) == 1
        yield RuleHit(
            assignment.start,
            f"Python knows no {name}",
            "write: PYTHONUNBUFFERED=1",
            edits=[(assignment.start, assignment.start + len(name), "PYTHONUNBUFFERED")]
            if alone
            else [],
        )


@rule(
    "secret-in-script",
    "error",
    "Slurm stores the script and shows it with scontrol write batch_script and "
    "sacct --batch-script; git keeps it forever.",
    "scontrol(1); slurm.conf(5) AccountingStoreFlags",
)
def secret_in_script(facts: LintFacts) -> Hits:
    kinds = {one.start(): one[0].lstrip("\"'")[:3] for one in secrets.spans(facts.text)}
    return [
        RuleHit(
            at,
            f"a token ({kind}…) is in the script",
            'keep it in a file with mode 0600, and: export NAME="$(< ~/.config/NAME)"',
        )
        for at, kind in kinds.items()
    ]


rule(
    "nounset-before-activation",
    "warning",
    "conda's and the start-up files of a shell may use unset variables, which ends the job there.",
    "bash(1) set -u",
    once=True,
)(
    pattern(
        r"set[ \t]+(?:-\w*u|[^\n]*-o[ \t]+nounset)(?:(?!\bset[ \t]+\+\w*u"
        r"|\+o[ \t]+nounset)[\s\S]){0,8000}?(?:\n|;|&&)[ \t]*"
        r"(?P<at>((?:conda|mamba|micromamba)[ \t]+(?:de)?activate|(?:source"
        r"|\.)[ \t]+[\"']?(?:activate(?=\s)"
        r"|\S*/\.?(?:bashrc|bash_profile|profile)(?![.\w]))))",
        r"\2 runs under set -u, and may end the job",
        r"move `set -u` after it, or: set +u; …; set -u",
    )
)

rule(
    "errexit-before-startup",
    "note",
    "with set -e any command of it that fails ends the job, such as a test that is false.",
    "bash(1) set -e",
    once=True,
)(
    pattern(
        r"set[ \t]+(?:(?:-\w+[ \t]+)*-\w*e|[^\n]*-o[ \t]+errexit)(?:(?!\bset[ \t]+\+\w*e)[\s\S]){0,8000}?\n[ \t]*"
        r"(?P<at>(?:source|\.)[ \t]+[\"']?(\S*/\.(?:bashrc|bash_profile|profile))\b(?![^\n]*\|\|))",
        r"\2 runs under set -e",
        r"move `set -e` below it",
    )
)


_FINDS_CONDA = re.compile(
    r"(?m)^(?![ \t]*#)[^\n]*(?:\b(?:module|ml|spack|conda|mamba|miniconda\w*)\b|PATH=|\.bash|profile|\benv\b)"
)


@rule(
    "conda-not-initialised",
    "warning",
    "a batch shell does not read ~/.bashrc, so that conda activate fails with: Your shell has not"
    " been properly configured.",
    "conda documentation",
    once=True,
)
def conda_not_initialised(facts: LintFacts) -> Hits:
    login = re.search(r"\s(?:-\w*[li]|--login)", facts.shell_flags)
    known = (
        login
        or not facts.is_batch
        or "get-user-env" in facts.options
        or re.search(r"\bconda *\(\)", facts.text)
    )
    # The content of sourced files is unknown.
    named = facts.named("source", ".", "eval", "module", "ml")
    shown = {one.start: facts.shown(one) for one in named}
    hooks = [start for start, text in shown.items() if not _OTHER_MODULES.match(text)]
    startup = (
        bool(hooks)
        and all("bashrc" in shown[start] for start in hooks)
        and not re.search(r"\b(?:conda|mamba)\b[^\n]*[ \t]init\b", facts.text)
    )
    for command in (
        facts.named("source") if not known and not _FINDS_CONDA.search(facts.text) else ()
    ):
        if command.words[1:2] and command.words[1].text == "activate":
            yield RuleHit(
                command.start,
                "activate comes from the PATH of the shell that calls sbatch",
                "write: source ~/miniconda3/bin/activate …, with the path of your conda",
                "note",
                "from another shell there is no such file, and the job runs with another python.",
            )
    for command in facts.named("conda", "mamba", "micromamba") if not known else ():
        hooked = min(hooks, default=command.start) < command.start
        activates = command.words[1:2] and command.words[1].text == "activate"
        # With set -e, the job ends where activate fails.
        unseen = startup and not option_on(facts, "errexit", command.shell, command.start)
        if (
            activates
            and not command.shell.via
            and not (hooked and command.after == "||")
            and (unseen or not hooked)
        ):
            yield RuleHit(
                command.start,
                f"{command.name} activate relies on ~/.bashrc"
                if hooked
                else f"{command.name} activate in a shell that was not prepared for it",
                'above it: source "$(conda info --base)/etc/profile.d/conda.sh"'
                if not hooked
                else "above it: source ~/miniconda3/etc/profile.d/conda.sh, with the path of your conda",
                "note" if hooked else "warning",
                "in a shell without terminal many a ~/.bashrc ends at its first lines: activate fails,"
                " and the job runs with another python."
                if hooked
                else None,
            )


@rule(
    "script-directory",
    "error",
    "Slurm runs a copy of the script from its spool directory on the node, where your files are"
    " not.",
    "sbatch(1)",
    once=True,
)
def script_directory(facts: LintFacts) -> Hits:
    asked = re.search(r"Command=|SLURM_SUBMIT_DIR:-|\[.*SLURM_JOB_?ID:-", facts.text)
    for part, command in facts.variables("0", "BASH_SOURCE"):
        named = command.name in ("dirname", "realpath", "readlink")
        takes = named or part.operand in ("%/*", "[0]%/*")
        sure = not command.conditional and command.after not in ("||", "&&")
        here = command.place == "batch" and not part.place and not command.scope.inside("if")
        line = facts.text[: part.start].rpartition("\n")[2]
        name = re.match(r"\s*(?:export\s+|readonly\s+)?(\w+)=", line)
        read = not name or re.search(rf"\$\{{?{name[1]}\b", facts.text[part.end :])
        if takes and sure and here and read and facts.is_batch and not asked:
            yield RuleHit(
                part.start,
                f"the directory of {facts.text[part.start : part.end]} is Slurm's spool directory",
                'cd "$SLURM_SUBMIT_DIR", or write the path out',
                "error" if re.match(r"\s*(?:cd|pushd|source|\.)\s", line) else "warning",
            )


rule(
    "shared-tmp",
    "note",
    "another job on the same node uses the same directory, and nothing removes it after the job.",
    "sbatch(1) OUTPUT ENVIRONMENT VARIABLES",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?((?!MIOPEN|HOME\b)\w+)=([\"']?)(/(?:tmp|dev/shm)/[\w/-]*[\w-])/?\2[ \t]*(?=[\n#]|\Z)"
        r"|(?:export[ \t]+)?(TE?MP(?:_?DIR)?)=[\"']?(/[\w/-]*/\$\{?USER\}?)[\"']?[ \t]*(?=[\n#]|\Z)",
        r"\1\4 is \3\5 in every job",
        'write: \\1\\4="\\3\\5/$SLURM_JOB_ID", make it with mkdir -p, and: trap \'rm -rf "$\\1\\4"\' EXIT',
    )
)

rule(
    "install-in-job",
    "note",
    "compute nodes often have no internet, and an installation changes the environment under your"
    " running jobs.",
    "pip documentation",
    once=True,
)(
    pattern(
        rf"(?:\S*python[\d.]*[ \t]+-m[ \t]+)?((?:(?:uv[ \t]+)?pip3?|conda|mamba|micromamba)[ \t]+install"
        rf"(?!(?:[ \t]+-\S+)*[ \t]+uv\b)|(?:conda|mamba)[ \t]+(?:env[ \t]+(?:create|update)"
        r"|create(?=[^\n]*[ \t](?:-\w*y|--yes)\b))|(?:bash|sh)[ \t]+\S*(?:setup|install)\w*\.sh"
        r"|poetry[ \t]+install|git[ \t]+(?:clone|pull)"
        r"|python3?[ \t]+setup\.py[ \t]+(?:install|develop|build)"
        r"|wget(?![^\n]*(?:localhost|127\.0|/dev/null|--spider))|(?:huggingface-cli"
        r"|hf)[ \t]+download"
        rf"|python3?[ \t]+(?:-u[ \t]+)?(?:\S*/)?download\w*\.py)\b"
        rf"(?!{REST}(?:--no-index|--offline|--dry-run))",
        r"\1 runs in the job",
        r"run it once before, on a login node",
        # Those are made for the job, or once; or to install is all that it does.
        unless=r"(?:-m venv|virtualenv)[ \t][^\n]*(?i:/tmp|TMPDIR)|cd[ \t][^\n]*TMPDIR[\s\S]*-m venv"
        r"|\n#SBATCH[^\n]*--environment[= ]"
        r"|![ \t]+-[defsr][ \t][^\n]*(?:venv|envs?\b|activate)(?:(?!\n[ \t]*fi\b)[\s\S])*\n[ \t]*fi\b"
        r"(?![\s\S]*\n[ \t]*(?:python[\d.]*[ \t]+-m[ \t]+)?(?:pip3?|conda)[ \t]+install\b)"
        r"|\A(?![\s\S]*\b(?:srun|torchrun|accelerate|deepspeed|Rscript|julia|uv run|(?:singularity|apptainer)[ \t]+"
        r"(?:exec|run)|python[\d.]*[ \t]+(?!-m[ \t]+(?:pip|venv)|-c|setup\.py|\S*download)))",
    )
)


rule(
    "arguments-in-text",
    "warning",
    "in a longer text it becomes several words: bash -c runs the first alone, and takes the others"
    " for its own $0, $1, ….",
    "bash(1) Special Parameters",
)(
    pattern(
        r"(?!(?:echo|printf|logger|export)\b)(?:\\[\s\S]|\"(?:\\[\s\S]|(?!\$@)[^\"\\])*\"|'[^']*'|[^\\\n;|&\"'#])*?"
        r"\"(?=[^\"])(?:\\[\s\S]|(?!\$@)[^\"\\\n])*(?P<at>\$@)(?:(?<!\"\$@)|(?!\"))",
        r"$@ is in a longer text",
        r"write: $*",
    )
)

rule(
    "output-overwritten",
    "note",
    "the next job empties the file, and two jobs at once mix their lines.",
    "bash(1) REDIRECTION",
    once=True,
)(
    pattern(
        r"(?:\w+=\S*[ \t]+)*(?:nohup[ \t]+)?"
        r"(?:(?:\S*/)?(?:srun|python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec)\b"
        rf"|\./\S+|\$\w+){REST}"
        r"(?<=\s)(?:1?>[ \t]*(?=\S+[ \t]+2>&1)|&>[ \t]*)(?!/dev)([\w./-]+?)(\.\w+)?(?=\s|\Z)",
        r"every job writes into \1\2",
        r"write: > \1_$SLURM_JOB_ID\2",
    )
)

rule(
    "matlab-exit-code",
    "warning",
    "matlab -r ends with exit code 0 also after an error, which is COMPLETED to Slurm, and to"
    " afterok.",
    "MATLAB documentation, matlab (Linux)",
)(
    pattern(
        rf"(?:srun{REST}(?<=\s))?matlab\b(?!{REST}(?<=\s)-batch){REST}(?<=\s)-r\s+([\"']?)(\w+)\1",
        r"matlab -r \2 hides errors",
        r"write: matlab -batch \"\2\"",
        unless=r"\bcatch\b|exit\(",
    )
)

rule(
    "debug-settings",
    "note",
    "it checks or logs every call, which slows the training.",
    "torch and NCCL documentation",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?(?:\w+=\S*[ \t]+(?:\\\n[ \t]*)?)*?(NCCL_DEBUG=[\"']?TRACE"
        r"|TORCH_DISTRIBUTED_DEBUG=[\"']?DETAIL|CUDA_LAUNCH_BLOCKING=[\"']?1)\b",
        r"\1 is for debugging",
        r"remove it when the error is found",
        # One process on one GPU exchanges nothing.
        unless=r"(?i)#SBATCH[^\n]*(?:debug|(?:-p|--partition)[= ]\w*cpu)"
        r"|\A(?![\s\S]*CUDA_LAUNCH)(?![\s\S]*\n#SBATCH[^\n]*(?:gpu[^\s,]*[=:]|--nodes[= ]|\s-N[= ]?)(?:[2-9]|\d\d))",
    )
)

rule(
    "exit-zero",
    "warning",
    "exit code 0 is success: the job is COMPLETED to Slurm, and to afterok, though nothing ran.",
    "sbatch(1); bash(1) exit",
)(
    pattern(
        r"(?i)\[\[?[ \t]+"
        # An argument is missing; or something else is, and a message says so.
        r"(?:(?:-z[ \t]+[\"']?\$\{?\d[^\n]*?|[\"']?\$#[\"']?[ \t]+-(?:lt|eq|ne|le)[ \t]+\d+)"
        r"[ \t]*\]\]?[ \t]*;?[ \t]*\n?[ \t]*then[ \t]*\n"
        r"|[^\n]*?(?:-z|![ \t]+-[fdesr])[ \t][^\n]*?\]\]?[ \t]*;?[ \t]*\n?[ \t]*then[ \t]*\n"
        r"[ \t]*(?:echo|printf)[^\n]*(?:\berror|usage|please|supply|provide|required|(?<!no )missing"
        r"|not found|not exist|not set)[^\n]*\n)"
        r"(?:[ \t]*(?:echo|printf|usage|print_usage|cat|#)[^\n]*\n|[ \t]*\n){0,8}"
        r"[ \t]*(?P<at>exit(?:[ \t]+0)?)[ \t]*(?=[;\n#])",
        r"something is missing, and the script ends with: \1",
        r"write: exit 1",
    )
)

rule(
    "shared-directory-removed",
    "note",
    "a second job uses the same directory, and loses its files when the other one removes it.",
    "sbatch(1) OUTPUT ENVIRONMENT VARIABLES",
    once=True,
)(
    pattern(
        r"mkdir[ \t]+(?:-p[ \t]+)?[\"']?((?:/|\$\{?(?:HOME|SCRATCH|WORK|TMP)\b)"
        r"(?:[\w./-]|\$\{?(?:USER|HOME|SCRATCH|WORK)\}?|\})+)[\"']?[ \t]*\n"
        r"(?=[\s\S]*\n[ \t]*rm[ \t]+-\w*r\w*[ \t]+[\"']?\1/?[\"']?[ \t]*(?:[\n;#]|\Z))"
        r"|rm[ \t]+-\w*r\w*[ \t]+[\"']?((?:[\w./-]|\$\{?(?:USER|HOME|SCRATCH|WORK)\}?)+)[\"']?[ \t]*"
        r"(?:\n|;|&&)\s*mkdir[ \t]+(?:-p[ \t]+)?[\"']?\2[\"']?[ \t]*(?=[\n;#]|\Z)",
        r"every job makes and removes \1\2",
        r"write: \1\2-$SLURM_JOB_ID",
    )
)

rule(
    "name-without-dollar",
    "warning",
    "the program gets the name as a text, and not the value.",
    "bash(1) PARAMETERS",
)(
    pattern(
        r"(?:(?:export[ \t]+)?([A-Za-z]\w*_\w+)[ \t]*=(?!=)[^\n]*\n"
        r"(?:[^\n]*\n){0,500}?[^\n#]*\.(?:py|sh|R|jl)[ \t]+(?=\1(?:[ \t\n;&|\\]|\Z))"
        # A value that is its own name.
        r"|(?=(?:export[ \t]+)?([A-Z]\w*_\w+)=[\"']?\2[\"']?[ \t]*(?:[\n;#]|\Z)))(?P<at>\w)",
        r"\1\2 has no $ where it is used",
        r'write there: "$\1\2"',
    )
)

rule(
    "cd-in-step",
    "note",
    "when it fails, the shell continues, and the program runs in another directory.",
    "bash(1) cd",
    once=True,
)(
    pattern(
        r"(?:srun|singularity|apptainer|bash)\b[^\n]*?(?:\\\n[^\n]*?)*?"
        r"(?:[ \t]-l?c[ \t]+[\"'](?![\"'])|\bbash[ \t]+<<-?[\"']?\w+[\"']?\n)"
        r"(?![^\n]*\bset -)\s*(?:[^\n&|;]*[;\n]\s*){0,6}?"
        r"(?P<at>cd[ \t]+[^\s;&|]+)[ \t]*[;\n](?=\s*\w)",
        r"nothing tests: \1",
        r"write: \1 || exit 1",
    )
)


rule(
    "array-commas",
    "warning",
    "blanks alone separate the elements; a comma becomes a part of the value.",
    "bash(1) Arrays",
)(
    pattern(
        r"(?:declare[ \t]+-a[ \t]+)?(\w+)=\(\s*(?:(?:\"[^\"\n]*\"|'[^'\n]*'|[\w./+-]+),\s+){1,999}"
        r"(?:(?:\"[^\"\n]*\"|'[^'\n]*'|[\w./+-]+),?\s*)?\)",
        r"the elements of \1 end with commas",
        r"write \1 without commas",
        unless=r"//,|IFS=[\"']?,|%,",
    )
)

rule(
    "steps-in-shell",
    "note",
    "the shell ends with the code of its last command, so that a failure of the first is lost.",
    "bash(1) EXIT STATUS",
    once=True,
)(
    pattern(
        r"(?:srun|singularity|apptainer|(?:/bin/)?bash)\b[^\n]*?(?:\\\n[^\n]*?)*?"
        r"[ \t]-\w*c[ \t]+([\"'])(?:(?!\1|\bset[ \t]+-)[\s\S]){0,2000}?"
        r"(?:\n|;)[ \t]*(?P<at>(?:python[\d.]*|torchrun)[ \t]+(?!-c|-m[ \t]+pip)(\S+)"
        r"(?:(?!\1|&&|\|\||;)[^\n\\]|\\[\s\S])*)(?:;[ \t]*|\n)"
        r"(?:(?!\1)[\s\S]){0,2000}?(?<=[\n;\s])(?:python[\d.]*|torchrun)[ \t](?!-c|-m[ \t]+pip)",
        r"the shell does not test whether \3 succeeds",
        r"write as the first command of the shell: set -e",
    )
)

rule(
    "copy-unchecked",
    "warning",
    "when the copy fails, such as at the quota, the only results are lost.",
    "bash(1) Lists",
    once=True,
)(
    pattern(
        r"(?:cp|rsync)\b(?:[ \t]+-\S+)*[ \t]+[\"']?((?:/|\$\{?\w|\w)[^\s\"';&|*]*?)(?:/[^\s\"';&|]*)?[\"']?[ \t]"
        r"[^\n&|;]*\n"
        r"(?:(?:[ \t]*(?:(?:echo|printf|cp|rsync|cd|date|#)[^\n&|]*|fi|done)?\n){0,6}?[ \t]*"
        r"(?=rm[ \t]+-\w*[rR]\w*[ \t]+[\"']?\$\{?\w*(?:WORK|TMP|TEMP|SCRATCH|LOCAL|STAG)\w*\}?/?[\"']?"
        r"[ \t]*(?:[\n;#]|\Z))"
        r"|(?:[^\n]*\n){0,14}?[ \t]*(?=rm[ \t]+-\w*[rR]\w*[ \t]+[\"']?\1/?[\"']?[ \t]*(?:[\n;#]|\Z)))(?P<at>rm\b)",
        r"rm runs also when the copy of \1 failed",
        r"write: cp … && rm -rf …",
        unless=r"\bset[ \t]+-\w*e|errexit|#!.*[ \t]-\w*e",
    )
)

rule(
    "results-at-end",
    "note",
    "at the time limit, after scancel or a failure of the node, these lines do not run, and the results"
    " are lost with the disk of the node.",
    "sbatch(1) --signal",
    once=True,
)(
    pattern(
        rf"(?:srun|python[\d.]*|torchrun|accelerate|deepspeed|apptainer|singularity|conda[ \t]+run)[ \t]"
        rf"{REST}(?:\|[^\n]*)?\n"
        r"(?:(?![^\n]*(?:python|srun)[ \t])[^\n]*\n){0,25}?[ \t]*"
        r"(?P<at>(?:cp|rsync|mv)\b(?:[ \t]+-\S+)*[ \t]+[\"']?"
        r"(\$\{?(?:SLURM_TMPDIR|TMPDIR|SCRDIR|LOCAL\w*|TMP\w*|WORK\w*)\}?|/tmp|/scratch/\$\{?SLURM_JOB_ID\}?))"
        r"[^\n]*",
        r"the results in \2 are copied after the training only",
        r"let the training save into the shared file system, or copy in a trap: #SBATCH --signal=B:TERM@300",
        unless=r"\btrap\b|--signal|\btimeout\b|\A(?![\s\S]*(?:=[\"']?(?:/tmp|/scr\w*/\$|\$\{?(?:SLURM_)?TMPDIR)"
        r"|[\"' =]\$\{?(?:SLURM_)?TMPDIR|/scratch/\$\{?SLURM_JOB))",
    )
)

rule(
    "installed-elsewhere",
    "warning",
    "nothing has activated the new environment, so that the packages go into the one that is active, such"
    " as base; the new one stays empty.",
    "conda documentation",
    once=True,
)(
    pattern(
        r"(?:conda|mamba)[ \t]+create\b(?![^\n]*activate)[^\n]*?[ \t](?:-n|--name|-p|--prefix)[ =]([^\s;&|]+)[^\n]*\n"
        r"(?:(?![^\n]*(?:activate|bin/))[^\n]*\n){0,8}?"
        r"[ \t]*(?P<at>(?:conda|mamba|pip3?)[ \t]+install\b(?![^\n]*[ \t](?:-n|--name|-p|--prefix)\b)"
        r"(?![^\n]*(?:\\\n[^\n]*)*[ \t](?:-n|--name|-p|--prefix)[ =]))",
        r"the packages do not go into \1",
        r"write: conda install -n \1 …, or activate it first",
    )
)

rule(
    "overlay-writable",
    "note",
    "one job at a time can mount it: the next one ends with: currently in use by another process.",
    "Apptainer user guide, persistent overlays",
    once=True,
)(
    pattern(
        rf"(?:(?:singularity|apptainer)[ \t]+(?:exec|run|shell)\b{REST}(?<=\s)--overlay[= ]\s*(?:\\\n\s*)?"
        r"|(?:export[ \t]+)?\w*(?:OVERLAY|overlay)\w*=)(?P<at>[\"']?([^\s\"':]+\.ext3)(?!\S*:ro)(?::rw)?)",
        r"\2 is mounted for writing",
        r"write in jobs: --overlay \2:ro",
        unless=r"\.ext3\S*:ro|OVERLAY\w*\}?:ro|overlay\w*\}?:ro|SLURM_JOB_ID\}?\.ext3",
    )
)

rule(
    "no-environment",
    "note",
    "the job gets the PATH of the shell that calls sbatch: from another shell it runs another python,"
    " such as the system's.",
    "sbatch(1) --export",
    once=True,
)(
    pattern(
        rf"(?:srun\b{REST}(?<=\s))?(?:\w+=\S*[ \t]+)*(python[\d.]*|torchrun|accelerate[ \t]+launch|deepspeed)"
        r"[ \t]+(?!(?:-u[ \t]+)?(?:-c\b|-V|--version|-m[ \t]+(?:pip|venv)|-[ \t\n]|<<))",
        r"nothing in the script chooses the environment of \1",
        r"write above it, for a venv: . /path/of/.venv/bin/activate",
        unless=r"(?mi)^(?![ \t]*#)[^\n]*(?:(?<![-\w.])(?:module|ml|setpkgs|conda|mamba|micromamba|source|spack|guix"
        r"|nix|pixi|poetry|uv|pdm|pipenv|hatch|virtualenv|venv|activate|apptainer|singularity|docker|podman|enroot|shifter|sarus"
        r"|eval|\w*env)\b|container|\bPATH=|bin/python|(?:^|[;&])[ \t]*\.[ \t])"
        r"|\A#![^\n]*[ \t](?:-\w*l|--login)|#SBATCH[^\n]*--(?:container|image|get-user-env|environment|uenv)"
        # A fragment.
        r"|\A(?![\s\S]*\n#SBATCH[^\n]*\s(?:--job-name|-J|--partition|-p)\b)",
    )
)

rule(
    "shell-variable-overwritten",
    "note",
    "the shell and programs read it: without the directories of PATH no program is found; ~ and the"
    " caches follow HOME.",
    "bash(1) Shell Variables",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?(?:(HOME)=[\"']?(?=/)(?!\S*(?:tmp|scratch|work))"
        r"|(PATH)=(?![^\n]*(?:PATH\b|/bin:|\())(?=[\"']?[/$~]))"
        r"[^\s\"']*[\"']?[ \t]*(?=[\n;#]|\Z)",
        r"\1\2 is overwritten",
        r"choose another name; to add a directory of programs: PATH=DIR:$PATH",
        unless=r"\bunset[ \t]+HOME|singularity[^\n]*--no-home",
    )
)

rule(
    "conda-init-in-job",
    "note",
    "it changes ~/.bashrc, which every login and the other jobs read, and has no effect on this shell.",
    "conda documentation",
    once=True,
)(
    pattern(
        r"(?:\S*/)?((?:conda|mamba|micromamba)(?:[ \t]+shell)?[ \t]+init)\b(?![^\n]*--dry-run)",
        r"\1 runs in the job",
        r'write: eval "$(conda shell.bash hook)", or of micromamba: eval "$(micromamba shell hook -s bash)"',
        unless=r"(?m)^[^#\n]*(?:conda\.sh|shell\.bash|shell[ \t]+hook)",
    )
)

rule(
    "server-port",
    "note",
    "another job on the node may hold the port; a client of this job then talks to its server.",
    "vLLM documentation",
    once=True,
)(
    pattern(
        rf"(?:srun\b{REST}(?<=\s))?(?:\S*/)?(?:CUDA\w+=\S+[ \t]+)?(vllm[ \t]+serve"
        r"|python[\d.]*[ \t]+-m[ \t]+(?:vllm|sglang)\S*"
        rf"|jupyter[ \t-]+(?:lab|notebook)|tensorboard)\b(?!{REST}(?:--port[= ]|--uds)[\"']?\$)"
        rf"{REST}(?<![&>])&(?![&>])",
        r"\1 has a fixed port",
        r"add: --port $((20000 + SLURM_JOB_ID % 9000)), for its clients as well",
        unless=r"#SBATCH[^\n]*(?:--exclusive|gpu\S*[=:]8\b|--mem[= ]0\b)|--port[= ][\"']?\$|--config",
    )
)


@rule(
    "workers-over-cores",
    "note",
    "the workers of all processes share the cores of the task, and wait for each other.",
    "torch.utils.data.DataLoader",
    once=True,
)
def workers_over_cores(facts: LintFacts) -> Hits:
    cores = facts.count("cpus-per-task") or 0
    counts = {one.command: one.number("nproc_per_node", "num_processes") for one in facts.launches}
    for command in facts.commands if cores and not facts.block.hetjobs else ():
        processes = counts.get(command) or 1
        match = _WORKERS.search(
            " ".join(
                [
                    *(word.text for word in command.argv),
                    *(f"{one.name}={one.word.text}" for one in command.assignments),
                ]
            )
        )
        if match is not None and processes * int(match[2]) > max(cores, 4):
            yield RuleHit(
                command.start,
                f"{processes} x {match[2]} threads or workers, and --cpus-per-task is {cores}",
                f"write: {match[1]}{max(1, cores // processes)}",
            )


_WORKERS = re.compile(
    r"(?<!\S)(--(?:data_?loader_?)?n(?:um)?[-_]workers[ =]|--workers[ =]|(?:\w+\.)*num_workers=|OMP_NUM_THREADS=)"
    r"(\d{1,3})(?!\S)"
)

rule(
    "variable-unread",
    "warning",
    "no library reads a variable of this name, so the setting has no effect, unless your program reads it.",
    "NCCL, PyTorch and Hugging Face documentation",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?(?:\w+=\S*[ \t]+)*?(NCCL_(?:TIMEOUT(?:_MS|_SECONDS)?|SOCKET_IFNAMES"
        r"|ASYNC_ERROR)"
        r"|CUDA_VISIBLE_DEVICE|OMP_NUM_THREAD|OMP_THREADS|TOKENIZERS?_PARALLEL"
        r"|TOKENIZER_PARALLELISM"
        r"|HF_DATASET_OFFLINE|TRANSFORMER_OFFLINE|HF_OFFLINE|PYTORCH_CUDA_ALLOC_CONFIG"
        r"|PYTORCH_CUDA_ALLOC|PYTHONUNBUFFER)="
        r"(?![\s\S]*\$\{?\1\b)",
        r"nothing reads \1",
        r"look its name up in the documentation, or remove the line",
    )
)

rule(
    "tilde-quoted",
    "warning",
    "in quotes ~ is not your home directory: the program makes a directory of this name, or finds"
    " nothing.",
    "bash(1) Tilde Expansion",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?(\w+)=[\"'](~/[^\"'\n]*)[\"']",
        r"\1 is \2, in quotes",
        r"write: \1=\2",
        unless=r"\$\{\w+(?:#|/)[\\\"']*~|expanduser|\b(?:ssh|scp|rsync)\b|sh[ \t]+-\w*c\b|\beval\b",
    )
)

rule(
    "cd-unchecked",
    "note",
    "when it fails, the script continues in the directory where sbatch was called.",
    "bash(1) cd",
    once=True,
)(
    pattern(
        r"(?:export[ \t]+)?(\w+)=[\"']?\$(?:\d|\{(?:\d|\1:?-))[^\n]*\n(?:[^\n]*\n){0,200}?"
        r"[ \t]*(?P<at>cd[ \t]+[\"']?\$\{?\1\}?[\"']?)[ \t]*[;\n]",
        r"nothing tests: \2",
        r"write: \2 || exit 1",
        unless=r"\bset[ \t]+-\w*e|errexit|#!.*[ \t]-\w*e|-[de][ \t]+[\"']?\$",
    )
)

rule(
    "editor-tildes",
    "error",
    "bash runs ~ as a command, which is a directory: the job ends with exit code 126, FAILED, also"
    " after a good training.",
    "bash(1) EXIT STATUS",
    once=True,
)(
    pattern(
        r"~(?=\s*(?:\n\s*~\s*)*\Z)",
        r"the script ends with ~, which an editor shows below the end of a file",
        r"remove the lines of ~",
    )
)

rule(
    "status-overwritten",
    "warning",
    "$? is the code of the command before it, which succeeded; that of the program is lost, and the job"
    " is COMPLETED to Slurm, and to afterok.",
    "bash(1) Special Parameters",
)(
    pattern(
        rf"(?:(?:echo|printf|date|touch)\b{REST}(?:;|\n)(?:\s*#[^\n]*\n)*\s*(?:exit|return)[ \t]+[\"']?"
        r"|(?<=elif )\[+[ \t]+[\"']?)(?P<at>\$\?)",
        r"this is not the exit code of the program",
        r"write behind the program: status=$?, and here: $status",
        unless=r"\bset[ \t]+-\w*e|errexit",
    )
)

rule(
    "conda-run-captured",
    "note",
    "conda run keeps the output until the program ends: at the time limit all of it is lost.",
    "conda documentation, conda run",
    once=True,
)(
    pattern(
        rf"(?:srun\b{REST}(?<=\s))?(?:\S*/)?(conda|mamba)[ \t]+run[ \t]"
        rf"(?!{REST}(?:--no-capture-output|--live-stream|(?<=\s)-s\s))",
        r"\1 run hides the output of the program while it runs",
        r"write: \1 run --no-capture-output …",
    )
)

rule(
    "log-discarded",
    "note",
    "when the job fails, nothing tells why.",
    "sbatch(1) --error",
    once=True,
)(
    pattern(
        r"(?:-e|--error)[= ]*(/dev/null)\b|(?:-o|--output)[= ]*(/dev/null)\b(?![\s\S]*#SBATCH[ ]+(?:-e|--error))",
        r"messages of errors go to /dev/null",
        r"write: --error=%x-%j.err",
        unless=r"\bexec[ \t]*[&\d]*>|2>&1|&>|\btee\b|2>[ \t]*(?!/dev)|\bsrun\b[^\n]*(?:-e|--error)\b",
    )
)

rule(
    "placeholder",
    "note",
    "nothing of this name exists, so that the program fails, or runs in another environment.",
    "Hugging Face and W&B documentation",
    once=True,
)(
    pattern(
        r"(?:(?:export[ \t]+)?\w*(?:_TOKEN|API_KEY)=[\"']?(?!/)"
        rf"|(?:(?:srun\b{REST}(?<=\s))?(?:python[\d.]*|torchrun|accelerate)\b{REST}[ =]"
        r"|(?:source|\.|cd)[ \t]+)[\"']?(?=/))"
        r"(?P<at>(?:hf_)?\.{3}|hf_x+|<[\w -]+>|(?i:your)[-_]\w+|/path/to/[^\s\"']*)(?=[\"'\s])",
        r"\g<at> is a placeholder",
        r"replace it by the value, or remove the line",
    )
)

# ---- signals -------------------------------------------------------------------------------------


def _trapped(trap: SimpleCommand) -> list[str]:
    names = (word.text.upper().removeprefix("SIG") for word in trap.words[2:])
    return [signals.NAMES.get(name, name) for name in names]


def _batch_traps(facts: LintFacts, signal: str) -> list[SimpleCommand]:
    traps = [one for one in facts.named("trap") if one.place == "batch"]
    return [trap for trap in traps if signal in _trapped(trap)]


rule(
    "trap-without-signal",
    "warning",
    "Slurm sends USR1 and USR2 only where --signal requests it; at the time limit it sends TERM.",
    "sbatch(1) --signal",
    once=True,
)(
    pattern(
        r"trap\s[^\n]*\b(?:SIG)?(USR[12])\b",
        r"nothing sends \1: there is no --signal",
        r"add: #SBATCH --signal=B:\1@120",
        unless=r"\b(?:kill|pkill|scancel)\b.*USR|--signal|SIGNAL=|\n# made by hpctrain ",
    )
)


@rule(
    "signal-without-trap",
    "warning",
    "a signal without a trap ends the batch shell, and Slurm then kills the training before the"
    " time limit.",
    "sbatch(1) --signal; bash(1) SIGNALS",
)
def signal_without_trap(facts: LintFacts) -> Hits:
    asked = facts.signal
    handled = any(facts.named("trap", "exec")) or sources(facts) or not facts.shell_name
    works_on = any(one.words and not _AFTERWARDS.match(one.name) for one in facts.commands)
    if asked is not None and asked.to_batch and not handled and works_on:
        yield RuleHit(
            facts.options["signal"].start,
            f"--signal ends the batch shell, which has no trap for {asked.name}",
            "srun python … and --signal without B:, so that the training gets it",
        )


@rule(
    "signal-unheard",
    "warning",
    "without B: Slurm signals the job steps, which srun starts, and not the batch shell.",
    "sbatch(1) --signal",
)
def signal_unheard(facts: LintFacts) -> Hits:
    asked = facts.signal
    traps = [one for one in facts.named("trap") if asked and asked.name in _trapped(one)]
    in_batch = bool(traps) and all(one.place == "batch" for one in traps)
    others = any(facts.named("mpirun", "mpiexec", "ibrun", "trap", "bash", "sh", "source", "."))
    starts = re.search(r"(?m)^[^#\n]*\bsrun\b", facts.text)
    no_step = not starts and not others and any(map(works, facts.commands))
    if asked is not None and not asked.to_batch and (in_batch or no_step):
        yield RuleHit(
            facts.options["signal"].start,
            f"--signal={facts.value('signal')} reaches job steps alone",
            "write: --signal=B:…" if in_batch else "start the training with: srun python …",
            "error" if in_batch else "warning",
        )


@rule(
    "endless-wait",
    "warning",
    "when it never comes, the job holds its GPUs until the time limit.",
    "bash(1)",
)
def endless_wait(facts: LintFacts) -> Hits:
    endless = {
        loop
        for loop, inside in facts.inside.items()
        if loop.name in ("while", "until") and any(one.name == "sleep" for one in inside)
        if not _GIVES_UP_WAITING.search(facts.text[loop.start : max(one.end for one in inside)])
    }
    waits = facts.named("curl", "wget", "nc", "[", "[[", "test")
    for command in waits if facts.asks_gpus else ():
        loop = command.scope.inside("loop") or command.scope
        missing = command.has("!") == (loop.name == "while") and command.has("-f", "-e", "-s")
        via = command.shell.via
        # One process of several may wait; and a loop in the background may only watch.
        if (
            (loop in endless and command.place == "batch" and not command.is_background)
            and (missing or command.name not in TESTS)
            and (via is None or via.name != "timeout")
        ):
            yield RuleHit(
                loop.start,
                f"a loop waits with {command.name}, without an end",
                'end it: timeout 600 bash -c "…", or kill -0 "$pid"',
            )


_GIVES_UP_WAITING = re.compile(
    r"(?<!-)\b(?:timeout|exit|return|kill|SECONDS|squeue|scontrol|date|ps|jobs"
    r"|attempts?|tries|retry|retries|elapsed|count\w*)\b|\(\(|-[lg][te]\s"
)


@rule(
    "trap-in-foreground",
    "error",
    "bash runs a trap only when the command in the foreground has ended, that is, "
    "after the time limit has killed it.",
    "bash(1) SIGNALS",
)
def trap_in_foreground(facts: LintFacts) -> Hits:
    asked = facts.signal
    traps = _batch_traps(facts, asked.name) if asked and asked.to_batch else []
    for trap in traps[:1]:
        later = [
            command
            for command in facts.commands
            if command.start > trap.start and command.shell is trap.shell
            if works(command) or _runs_script(command)
            if command.scope.inside("$(", "function") is None
        ]
        if later and not any(command.is_background for command in later):
            yield RuleHit(
                later[-1].start,
                f"{later[-1].name} runs in the foreground, so the trap waits for its end",
                f'{later[-1].name} … & then: wait "$!"',
            )


@rule(
    "usr1-kills-launcher",
    "error",
    "torchrun and accelerate pass on TERM, INT, HUP and QUIT; USR1 ends the agent "
    "and orphans its workers.",
    "torch/distributed/elastic; tried with torch 2.13, accelerate 1.15",
)
def usr1_kills_launcher(facts: LintFacts) -> Hits:
    traps = {
        one.shell for one in facts.named("trap") if one.shell.via and "USR" in facts.shown(one)
    }
    kinds = [
        one.kind
        for one in facts.launches
        if one.command.step and one.complete and one.command.shell not in traps
    ]
    asked = facts.signal
    starts = [
        one.start
        for one in facts.named("scancel", "trap")
        if not one.shell.via and _SENDS.search(facts.shown(one))
    ]
    if asked is not None and not asked.to_batch and asked.name in ("USR1", "USR2"):
        starts.append(facts.options["signal"].start)
    if kinds and starts and not re.search(r"(?i)signals[-_]to[-_]handle", facts.text):
        yield RuleHit(
            min(starts),
            f"this sends USR1 to {kinds[0]} in each task",
            "send TERM, or let the training poll $SLURM_JOB_END_TIME"
            if kinds[0] == "accelerate"
            else "torchrun --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 …",
        )


#: Sets variables whose names are not in the script.
_SETS_ANY = re.compile(
    r"\bset -a\b|\b(?:declare|export|local|typeset|readonly)\s+(?:-\w+\s+)*[\"']?[$`]"
)


#: Without a $, a name is set somehow: NAME=, read NAME, for NAME, --export=NAME; or ${NAME:?}.
_TELLS = re.compile(r"(?<![\w$\{#!%\\-])(\w+)\b(?!=[\"']?\$\{?\1\b)|(?<=\{)(\w+)(?=:?[-=?+])")
#: Variables that the system, Slurm or the site sets.
_ELSEWHERE = re.compile(
    r".*(?:_proxy|_HOME|_PREFIX|_CACHE|TMPDIR)\Z|\W|\d|(?:SLURM|MASTER_|SBATCH|BASH|LC_|XDG_|EB"
    r"|LMOD|CRAY|PBS|CONDA|VIRTUAL_ENV)|\w*(?:SCRATCH|WORK|PROJECT|STORE)"
    r"|(?:HOME|USER|LOGNAME|(?:(?:LD_)?LIBRARY_|PYTHON|MAN)?PATH|PWD|OLDPWD|SHELL|TMP|TMPDIR|TEMP|LANG|HOSTNAME|HOSTTYPE|TERM|U?EUID|UID"
    r"|PPID|IFS|OPT\w+|RANDOM|SECONDS|EPOCH\w+|LINENO|FUNCNAME|REPLY|DIRSTACK|CUDA_VISIBLE_DEVICES"
    r"|GROUPS|MACHTYPE|OSTYPE|SHLVL|PIPESTATUS)\Z"
)


@rule(
    "variable-unset",
    "warning",
    "bash puts an empty text in its place, without an error.",
    "bash(1) PARAMETERS",
    once=True,
)
def variable_unset(facts: LintFacts) -> Hits:
    known = not facts.is_batch or sources(facts) or _SETS_ANY.search(facts.text)
    told = {name for names in _TELLS.findall(facts.text) for name in names}
    assigned = " ".join(one.name for one, _ in facts.assigned())
    for lower, command in product((True, False), () if known else facts.commands):
        ends = option_on(facts, "nounset", command.shell, command.start)
        shown = command.name in TALKERS | TESTS and not ends
        # The environment or a module may have those with capital letters.
        form = (
            r"[a-z][a-z0-9_]*\Z"
            if shown or (any(facts.named("module", "ml")) and not ends)
            else r"[A-Za-z]\w*\Z"
        )
        for part in command.expansions():
            name = part.text
            plain = part.kind == "var" and not part.operand
            likely = re.match(form, name) or re.search(rf"_{re.escape(name)}\b", assigned)
            # Without a value for its option, the program stops at once.
            stops = rf"\s--[\w-]+ \$\{{?{re.escape(name)}\}}?(?!\S)"
            here = (part.place or command.place) == "batch" and not (
                _ELSEWHERE.match(name) or (not lower and re.search(stops, facts.text))
            )
            if plain and likely and here and name not in told and name.islower() is lower:
                yield RuleHit(
                    part.start,
                    f"nothing in the script sets ${name}",
                    f"write above it: {name}=VALUE"
                    if lower
                    else f'write above it: : "${{{name}:?is not set}}"',
                    "warning" if name.islower() else "note",
                    "set -u ends the job here, unless the environment has it." if ends else None,
                )
