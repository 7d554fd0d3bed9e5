"""Statements that need words of their own: regular expression on the statement → sentence. The first that matches counts.

To add one: a line here. Named groups of the expression can stand in the sentence. Match what a line *is* (`source … || fail`), not where
it comes from; a script of somebody else that does the same gets the same sentence.
"""

from __future__ import annotations

import re

from hpctrain.jobs.explain_script.rows import END, ENVIRONMENT, HEADER, LAUNCH, LOGS, MEET, Row

_BASH = "bash(1)"
_SLURM = "scontrol(1)"


def _row(pattern: str, why: str, source: str = _BASH, section: str | None = None) -> tuple[re.Pattern[str], Row]:
    return re.compile(pattern), Row(why, source, section)


#: Comments that are more than a remark.
COMMENTS: tuple[tuple[re.Pattern[str], Row], ...] = (
    _row(
        r"# made by hpctrain ",
        "which hpctrain wrote this, from which template; by the last number it knows if somebody edited it.",
        "hpctrain",
        HEADER,
    ),
    _row(r"# make it again: ", "type this to write the same script again.", "hpctrain", HEADER),
    _row(r"#\s*shellcheck ", "a word to shellcheck, which looks for mistakes in scripts; bash skips it.", "shellcheck(1)"),
)

STATEMENTS: tuple[tuple[re.Pattern[str], Row], ...] = (
    # where it logs
    _row(
        r"for stream in output error; do",
        "for stdout and for stderr: a link with a name that stays, and leads to the log of the newest job. "
        "Without it you look up the job's number first.",
        "hpctrain",
        LOGS,
    ),
    _row(r'link="logs/', "the name of that link."),
    _row(r'if \[ -L "\$link" \]', "only where there is nothing yet, or an older link: a real file of that name is somebody's, and stays."),
    _row(r"ln -sfn .*\|\| true", "the link now leads to this job's log. A failure here is no reason to stop (`|| true`)."),
    _row(r'echo "warning: \$link', "says in the stderr log where to look, if the link could not be made."),
    # the environment
    _row(
        r"fail\(\) \{",
        "a function for what must not fail silently: says what is wrong and what to type, then ends the job.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(r'echo "error: \$1" >&2', "what is wrong, into the stderr log."),
    _row(r'echo "fix: \$2" >&2', "what to type, into the stderr log."),
    _row(
        r"command -v (?P<program>[\w.-]+) >/dev/null \|\| fail",
        "`{program}` must be found, or the job ends here with a word of what to do: better than a traceback for each process.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(
        r"module (?:load|add) (?P<module>\S+) \|\| ",
        "makes the software `{module}` available, or ends the job: a module that is missing would show up as a puzzling error much later.",
        "module(1)",
        ENVIRONMENT,
    ),
    _row(
        r'(?:source|\.) "?\$\(conda info --base\)"?/etc/profile\.d/conda\.sh',
        "teaches this shell what `conda activate` is; a batch shell does not know it.",
        "conda documentation",
        ENVIRONMENT,
    ),
    _row(
        r"(?:source|\.) \S*conda\.sh",
        "teaches this shell what `conda activate` is; a batch shell does not know it.",
        "conda documentation",
        ENVIRONMENT,
    ),
    _row(
        r"eval .*\b(?:conda|mamba|micromamba)\b.*hook",
        "teaches this shell what `conda activate` is; a batch shell does not know it.",
        "conda documentation",
        ENVIRONMENT,
    ),
    _row(
        r"eval .*\bpixi shell-hook\b",
        "puts the environment of the pixi project first: its Python, its packages.",
        "pixi documentation",
        ENVIRONMENT,
    ),
    _row(
        r"conda activate (?P<name>'[^']*'|\S+) \|\| ",
        "the Python and the packages of the conda environment {name} come first from here on, or the job ends here.",
        "conda documentation",
        ENVIRONMENT,
    ),
    _row(
        r"(?:source|\.) activate (?P<name>\S+)",
        "the old way to activate the conda environment `{name}`; now `conda activate`.",
        "conda documentation",
        ENVIRONMENT,
    ),
    _row(
        r"(?:source|\.) (?P<file>'[^']*/bin/activate'|\S*/bin/activate)(?: \|\| |\s*$)",
        "activates a Python virtual environment: its Python and its packages come first from here on. Without it: the system's Python.",
        "Python documentation, venv",
        ENVIRONMENT,
    ),
    _row(
        r"(?:source|\.) (?P<file>~/\.bashrc|\$HOME/\.bashrc)",
        "runs your own start-up file. What stands in it changes the job without a trace in this script.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(
        r"(?:source|\.) (?P<file>.+) \|\| fail \$?'the hook",
        "your own hook: the lines of `{file}` run in this shell before the training starts; if one fails, so does the job.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(
        r"(?:source|\.) (?P<file>.+) \|\| echo \$?'warning: the hook",
        "your own hook: the lines of `{file}` run in this shell after the training, whatever came of it.",
        _BASH,
        END,
    ),
    _row(r"pixi=\$\(command -v pixi", "where the program pixi is.", "pixi documentation", ENVIRONMENT),
    _row(
        r'activation=\$\("\$pixi" shell-hook',
        "asks pixi for the lines that activate the project's environment; --as-is: as it is installed, without the internet.",
        "pixi documentation, shell-hook",
        ENVIRONMENT,
    ),
    _row(
        r'eval "\$activation"',
        "runs those lines: the environment's Python and packages come first from here on.",
        "pixi documentation, shell-hook",
        ENVIRONMENT,
    ),
    _row(
        r"\[ -e (?P<image>.+) \] \|\| fail \$?'there is no image",
        "the container's image must be there, or the job ends here, and not on every node.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(r"mode=\$\(stat -L -c %a", "the rights of the file that holds a secret, as a number.", "GNU coreutils manual", ENVIRONMENT),
    _row(
        r"\[\[ \$mode == \[46\]00 \]\] \|\| fail",
        "only its owner may read it (600 or 400), or the job ends here: a secret that others can read is none.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(
        r"\w+=\$\(<",
        "reads the value from that file, so that it stands in no script, in no log, and not in the copy that Slurm keeps.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(r'\[ -n "\$\w+" \] \|\| fail', "an empty file is no secret: the job ends here.", _BASH, ENVIRONMENT),
    _row(
        r'\[ -n "\$\{(?P<name>\w+)-\}" \] \|\| fail',
        "`{name}` has to come along from the shell where sbatch was typed; else the job ends here, and not at its first use.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(
        r"threads=\$\(\(SLURM_CPUS_PER_TASK / (?P<share>\d+)\)\)",
        "the task's cores, shared out to its training processes{each}.",
        _BASH,
        ENVIRONMENT,
    ),
    _row(
        r'unset .*"\$\{!PET_@\}"',
        "removes what may have come along from your shell: PET_* are defaults for every option of torchrun, and "
        "SLURM_EXPORT_ENV says what srun passes on.",
        "PyTorch documentation, torch.distributed.run; srun(1)",
        ENVIRONMENT,
    ),
    _row(r'mkdir -p "\$HPCTRAIN_RUN_DIR"', "makes that directory."),
    _row(r"ulimit -l unlimited", "as much locked memory as is needed, which InfiniBand wants.", _BASH, ENVIRONMENT),
    # where the ranks meet
    _row(
        r"(?:export )?\w+=.*scontrol show hostnames?\b.*\bhead -n ?1",
        "the name of the job's first node: scontrol spells the node list out, a name to a line, and head takes the first.",
        _SLURM,
        MEET,
    ),
    _row(
        r"(?:export )?\w+=.*scontrol show hostnames?\b",
        "the names of the job's nodes. Slurm writes them short, node[01-02]; scontrol spells them out, a name to a line.",
        _SLURM,
        MEET,
    ),
    _row(
        r"export MASTER_ADDR=\$\{hosts%%\$'\\n'\*\}",
        "the first of those names: the node where all processes meet at the start. Worked out once, so that all are told the same.",
        "PyTorch documentation, torch.distributed.run",
        MEET,
    ),
    _row(
        r'if getent hosts "\$\{?MASTER_ADDR',
        "where the name with that ending is known, it is the same node on the fast network:",
        "getent(1)",
        MEET,
    ),
    _row(r"MASTER_ADDR\+=", "all meet there. Without it, they may meet over the slow network, or not at all.", _BASH, MEET),
    _row(
        r"export MASTER_PORT=\$\(\((?P<low>\d+) \+ SLURM_JOB_ID % (?P<span>\d+)\)\)",
        "the port there, made of the job's number: two jobs on one node do not take the same.",
        "PyTorch documentation, torch.distributed.run",
        MEET,
    ),
    _row(
        r"(?:export )?MASTER_PORT=\d+\s*$",
        "the port there. A fixed one is taken when two jobs share a node: EADDRINUSE.",
        "PyTorch documentation, torch.distributed.run",
        MEET,
    ),
    _row(
        r"(?:export )?MASTER_ADDR=[\"'`$(]*hostname",
        "this node's name, where all processes meet at the start: right where it is worked out once, by this script.",
        "PyTorch documentation, torch.distributed.run",
        MEET,
    ),
    _row(
        r'while \(exec 3<>"/dev/tcp/',
        "asks whether something answers at that port already; while it does, the line below runs.",
        _BASH,
        MEET,
    ),
    _row(r"MASTER_PORT=\$\(\(MASTER_PORT \+ 1\)\)", "the next port."),
    _row(r'echo "rendezvous: ', "the place, into the log: the first thing to look at when the start hangs."),
    # the launch
    _row(r'container=\("\$\{@:2:\$1\}"\)', "the words of the container command, out of those that were handed in.", _BASH),
    _row(r'shift "\$\(\(\$1 \+ 1\)\)"', "and takes them off: what is left belongs to the launcher.", _BASH),
    _row(r"\w+=\(", "words for a command below, kept as an array: each stays one word, whatever blanks are in it.", _BASH, LAUNCH),
    _row(r"status=0\s*$", "the exit code of the job, if nothing fails.", _BASH, LAUNCH),
    # on each node
    _row(
        r"gpus=\$\{SLURM_GPUS_ON_NODE:-(?P<count>\d+)\}",
        "the GPUs that Slurm gave on this node; {count}, where it does not say.",
        "sbatch(1), from Slurm 21.08",
    ),
    _row(
        r'if \[ "\$gpus" -lt (?P<count>\d+) \]', "fewer than the {count} this script starts processes for: two of them would share a GPU."
    ),
    _row(r'elif \[ "\$gpus" -gt (?P<count>\d+) \]', "more than the {count} it uses: the others would be charged and idle."),
    _row(r'echo "(?:error|warning): \$SLURMD_NODENAME has', "says which node, and how many it has."),
    _row(r'echo "fix: ', "what to type, into the stderr log."),
    _row(
        r"cache=\$\(mktemp -d",
        "a new directory on the node's own disk for compiled kernels. In a shared one, the nodes write over each other; "
        "if your shell's TMPDIR is not here, /tmp.",
        "GNU coreutils manual",
    ),
    _row(r"remove_cache\(\) \{", "a function that deletes that directory."),
    _row(r"trap remove_cache EXIT", "deletes it when this shell ends, however it ends."),
    _row(
        r"trap : TERM",
        "SIGTERM (the time limit, scancel) does not end this shell: the training gets it too, and may need a moment to save.",
    ),
    _row(r"host=\$\(\(SLURM_NODEID == 0\)\)", "1 on the first node, 0 on the others: who holds the meeting."),
    _row(
        r"export RANK=.*LOCAL_RANK=",
        "tells torch which of all processes this one is, and which GPU of the node it takes. Without LOCAL_RANK, each may train alone.",
        "PyTorch documentation, torch.distributed.run",
    ),
    # after the launch
    _row(r'echo "hpctrain: job ', "how it ended, into the log.", "hpctrain", END),
    _row(
        r'exit "?\$\{?(?:status|code|rc|ret)\}?"?\s*$',
        "hands the training's exit code on to Slurm. Without it, a training that failed is COMPLETED.",
        "bash(1), sbatch(1)",
        END,
    ),
)
