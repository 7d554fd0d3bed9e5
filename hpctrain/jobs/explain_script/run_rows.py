"""Statements about the run: its name and directory, the end that is noted, and the requeue. As in statement_rows.py.

To add one: a line here.
"""

from __future__ import annotations

import re

from hpctrain.jobs.explain_script.rows import END, LAUNCH, PLACE, RUN, Row

_BASH = "bash(1)"
_OURS = "hpctrain"
_SBATCH = "sbatch(1)"
_SCONTROL = "scontrol(1)"


def _row(pattern: str, why: str, source: str = _BASH, section: str | None = None) -> tuple[re.Pattern[str], Row]:
    return re.compile(pattern), Row(why, source, section)


STATEMENTS: tuple[tuple[re.Pattern[str], Row], ...] = (
    # without Slurm
    _row(r'if \[ -z "\$\{SLURM_JOB_ID-\}" \]', "somebody typed `bash` in place of `sbatch`:", _BASH, PLACE),
    _row(r"if command -v sbatch >/dev/null", "where there is a Slurm, this is a login node, and training on it takes it from everybody."),
    _row(r'echo "error: this is a batch script', "says so."),
    _row(
        r'exec hpctrain submit --local --wait "\$0"',
        "where there is none, hpctrain plays Slurm on this machine, and runs this file.",
        _OURS,
    ),
    # the run
    _row(
        r"tag=\$\{1:-",
        "what the run is called: the word behind the script's name (`sbatch SCRIPT NAME`), else made of the job's number.",
        _SBATCH,
        RUN,
    ),
    _row(
        r"\[\[ \$tag =~ .*\]\] \|\| fail", "it becomes the name of a directory, so a word with other characters ends the job.", _BASH, RUN
    ),
    _row(
        r'\[ -z "\$\{SLURM_ARRAY_TASK_ID-\}" \] \|\| fail',
        "several tasks of an array would write to one run, so this ends them.",
        _SBATCH,
    ),
    _row(
        r"index=\$\(\(SLURM_ARRAY_TASK_ID \+ (?P<offset>\d+)\)\)", "which point of the sweep: this array begins at point {offset}.", _SBATCH
    ),
    _row(r"index=\$SLURM_ARRAY_TASK_ID", "which task of the array this is.", _SBATCH),
    _row(r'run="\$\{tag\}', "the run's own name: that of the whole, and what tells this part of it apart.", _OURS, RUN),
    _row(
        r"export HPCTRAIN_TAG=",
        "the names, and the run's directory, for everything started below. A job that is requeued, or submitted again under this name, "
        "comes back to the same directory, and goes on.",
        _OURS,
        RUN,
    ),
    _row(
        r"restart=\$\{SLURM_RESTART_COUNT:-0\}",
        "how often this job has been requeued. Up to Slurm 26.05 nothing is set the first time.",
        _SBATCH,
    ),
    _row(r"export HPCTRAIN_ATTEMPT=", "the name of this start of the job.", _OURS, RUN),
    _row(
        r'\[ ! -e "\$HPCTRAIN_RUN_DIR/attempts/\$HPCTRAIN_ATTEMPT"',
        "where an earlier job of the same number has worked on this run, the time tells the two apart.",
        _OURS,
    ),
    _row(r'attempt="\$HPCTRAIN_RUN_DIR', "where notes on this start are kept.", _OURS),
    _row(r'mkdir -p "\$(?:attempt|launch)"', "makes that directory."),
    _row(r"note\(\) \{ printf", "a function that writes a file under another name and renames it: nobody ever reads half of one."),
    _row(r'if \[ ! -e "\$HPCTRAIN_RUN_DIR/run\.json" \]', "at the first start of the run:"),
    _row(r'\[ -e "\$HPCTRAIN_RUN_DIR/script\.sbatch" \] \|\| cp', "keeps this script in the run's directory."),
    _row(r'note "\$HPCTRAIN_RUN_DIR/run\.json"', "who the run is, for `hpctrain runs`.", _OURS),
    _row(
        r'job=(?:"\$\{SLURM_ARRAY_JOB_ID\}_|\$SLURM_JOB_ID)', "the job's number as people write it; of an array task, array_task.", _SBATCH
    ),
    _row(r'note "\$attempt/start\.json"', "that, where and when this job started.", _OURS),
    _row(r'begins="hpctrain: attempt', "which start of which run this is, on which nodes, and when.", _OURS),
    _row(
        r'echo "\$begins"', "says so: the first words of each start in the log, by which `hpctrain logs` and `explain` tell starts apart."
    ),
    _row(r'\[ "\$restart" -eq 0 \] \|\| echo "\$begins" >&2', "a requeued job says it in the error log too, which goes on as well."),
    _row(r'over="\$HPCTRAIN_RUN_DIR/over"', "a file that says that the run has ended.", _OURS),
    _row(r'if \[ -e "\$over" \]', "where it is, an earlier job of the chain has done all there was to do, or failed:"),
    _row(r'echo "hpctrain: the run \$run is over', "says so."),
    _row(r'rm -r "\$attempt"', "this start counts for nothing."),
    _row(r'launch="runs/\.launches/\$tag"', "what `hpctrain submit` wrote down when this was submitted.", _OURS),
    _row(r"code=\.", "your script is taken from the project as it is now,"),
    _row(r'if \[ -L "\$launch/code" \]', "where `hpctrain submit` has kept the code as it was then:"),
    _row(r"HPCTRAIN_CODE=\$\(cd", "the place of that copy: code that is queued is code that runs, whatever you edit meanwhile.", _OURS),
    _row(r"export HPCTRAIN_CODE\s*$", "for everything that is started below.", _OURS),
    _row(r'export PYTHONPATH="\$HPCTRAIN_CODE', "modules are imported from the copy first.", "python(1)"),
    _row(r"code=\$HPCTRAIN_CODE", "and your script is taken from it."),
    _row(r'if \[ -d "\$launch" \] && ', "the first time,"),
    _row(r'ln -s "\.\./\.launches/', "the run's directory leads to what was written down."),
    _row(r'note "\$launch/\$\{tag\}_\$index\.id"', "the run of this point, so that `hpctrain resubmit` finds what is missing.", _OURS),
    _row(r'echo "Exported run_id', "its name, into the log."),
    _row(r"export HPCTRAIN_STAGE_\w+=", "where an earlier stage has its run: its checkpoints, and its model.", _OURS),
    _row(
        r"grep -qs '\"outcome\": \"completed\"'",
        "the stage before must have done all of its steps; that its jobs have ended says less.",
        _OURS,
    ),
    _row(
        r'if \[ -z "\$\{SLURM_JOB_END_TIME-\}" \]',
        "where Slurm does not say itself when the time limit ends the job (before 23.02):",
        _SBATCH,
    ),
    _row(r"end=\$\(scontrol show job", "asks for it.", _SCONTROL),
    _row(r'\[ -z "\$end" \] \|\| SLURM_JOB_END_TIME=', "in seconds since the epoch.", "date(1)"),
    _row(r"export SLURM_JOB_END_TIME", "the training stops before that moment, early enough to save."),
    # the point of a sweep
    _row(r'line=\$\(sed -n "\$\(\(index', "the line of this point, out of the sweep's table.", "sed(1)", LAUNCH),
    _row(r'\[ -n "\$line" \] \|\| fail', "without one there is nothing to run.", _BASH, LAUNCH),
    _row(r"export HPCTRAIN_POINT=", "a file with the values of the point,", _OURS, LAUNCH),
    _row(r'note "\$HPCTRAIN_POINT"', "written: the part of the line before the tab is JSON.", _OURS, LAUNCH),
    _row(r'eval "command\+=\(', "the part behind the tab is the same as words of bash, quoted: they join the command line.", _BASH, LAUNCH),
    _row(r'eval "export ', "the part behind the tab is the same as variables, quoted.", _BASH, LAUNCH),
    # the trial of a study
    _row(r"export HPCTRAIN_TRIAL=", "where this run keeps which trial it is,", _OURS, LAUNCH),
    _row(
        r"study\(\) \{",
        "a function that speaks with the study, once, on the first node: `ask` before the training, `tell` after it.",
        _OURS,
        LAUNCH,
    ),
    _row(r"answer=0\s*$", "what it answers: 0, if it has a trial for this run.", _BASH, LAUNCH),
    _row(
        r"study ask ",
        "asks for a trial: the study chooses its values by what the trials before have found. A run that has one already gets it again.",
        _OURS,
        LAUNCH,
    ),
    _row(r'if \[ "\$answer" -eq 3 \]', "3: the study has all the trials that it was to have.", _OURS, LAUNCH),
    _row(r'\[ "\$answer" -eq 0 \] \|\| fail', "without a trial there is nothing to train; why, stands in the log above.", _BASH, LAUNCH),
    _row(r"mapfile -t -O .*trial\.words", "the values as words, one to a line, join the command line; none is ever run.", _BASH, LAUNCH),
    _row(r"command\+=\(--trial ", "the training tells the study each evaluation, and stops when the study says so.", _OURS, LAUNCH),
    _row(
        r'study tell "\$status"',
        "how the trial went: its value, stopped early, or failed. One that only stops, to go on later, stays open.",
        _OURS,
        END,
    ),
    _row(r"command\+=\(", "tells your script where that file is.", _BASH, LAUNCH),
    # on each node
    _row(
        r'trap ": >.*/stop\\?"" (?:TERM|USR1)',
        "a signal (the time limit, scancel, a requeue, preemption) ends nothing here: it leaves a file, and the training saves and stops.",
    ),
    _row(
        r'trap "kill -(?P<signal>\w+) \\"\\\$training',
        "hands the signal on to your script: Slurm sends it to this shell alone.",
        "scancel(1)",
    ),
    _row(r"training=\$!", "the number of the process that was just started."),
    _row(r'while kill -0 "\$(?:training|srun)"', "as long as it lives, waits for it; a signal ends one waiting, not the loop."),
    _row(r'wait "\$training"', "its exit code is the exit code of this task."),
    # after the launch
    _row(r"srun=\$!", "srun runs in the background, because bash sees to signals only between two commands.", _BASH, END),
    _row(
        r"trap ': >\"\$attempt/stop\"; scancel --signal=TERM",
        "a signal to this shell goes to the training. srun must not get it: it would end the step at once.",
        "srun(1)",
        END,
    ),
    _row(r"trap 'kill -USR1", "srun hands this one on to the training.", "srun(1)", END),
    _row(r"trap ': >\"\$attempt/stop\"'", "a signal to this shell leaves the same file for the training.", _BASH, END),
    _row(r'wait "\$srun" \|\| status', "srun's exit code: that of the task that ended worst.", "srun(1)", END),
    _row(r"output_at=null", "when the log grew last: not known yet,", _BASH, END),
    _row(
        r'\[ ! -f "/proc/\$\$/fd/1" \] \|\| output_at=',
        "then asked of the file itself: a training that hung was silent for long.",
        "stat(1)",
        END,
    ),
    _row(r"reason=\s*$", "why the training ended, where it says so.", _BASH, END),
    _row(
        r'if \[ -s "\$attempt/exit" \]',
        "launchers hide the exit code of what they started, so the training leaves it in a file:",
        _OURS,
        END,
    ),
    _row(r'read -r status reason <"\$attempt/exit"', "code and reason, out of that file."),
    _row(r"ended\(\) \{", "a function that notes how this start of the job ended.", _BASH, END),
    _row(r"outcome=\$1", "kept for whoever is told of the end."),
    _row(r"case \$outcome in", "how the run ended: who wants to know of that is told.", _BASH, END),
    _row(r'said="\$run \$outcome: job', "the sentence that is told."),
    _row(
        r"HPCTRAIN_OUTCOME=\$outcome .*timeout 60 ",
        "your program is run with the sentence as its argument; it gets a minute, and how it ends changes nothing.",
        "timeout(1)",
    ),
    _row(r"messages\(\) \{", "a function that says what the end of this task, one of many, is to tell."),
    _row(r"tell\(\) \{$", "a function that runs your program with each of these messages."),
    _row(
        r".*python -m hpctrain\.runs\.notify --point ",
        "one task of many: says what this end is to tell, mostly nothing, and sends it to the webhook, whose address stands in no script.",
        _OURS,
    ),
    _row(r"\[ \"\$1\" != failed \] \|\| printf", "what could not be said: a failure is told all the same."),
    _row(r"local how about text", "names that hold in this function alone."),
    _row(r"while IFS=\$'\\t' read -r how about text", "each message that this task is to tell."),
    _row(r"HPCTRAIN_RUN_ID=\$about ", "your program is run with the message as its argument; it gets a minute.", "timeout(1)"),
    _row(r"done < <\(messages ", "of the function above."),
    _row(r"status=0 reason=no-trial-left", "what the message says of a task that had nothing to do."),
    _row(r"(?:[a-z |]+\) )?tell ", "tells of this end, by the function above."),
    _row(r'.*rm -f "\$launch"/ends/', "a start after an interruption: this point goes on, so that it was interrupted is no end of it."),
    _row(r".*python -m hpctrain\.runs\.notify ", "sends the sentence to the webhook, whose address stands in no script.", _OURS),
    _row(r'note "\$attempt/end\.json"', "the note, for `hpctrain runs` and `hpctrain resubmit`.", _OURS),
    _row(r"case \$status in", "what the exit code means, and what follows from it:", _BASH, END),
    _row(r"(?:0|86)\) ended (?P<how>\w+)", "noted as {how}."),
    _row(r'\*\) if \[ -e "\$attempt/stop"', "any other code is a failure; of a job that was told to end, Slurm says what became of it."),
    _row(r"85\)", "85 is the training's word for: saved, and not done."),
    _row(r"now=(?:\s|$)", "what Slurm says of this job."),
    _row(r"for pause in ", "three times at most: a controller that is busy, or restarts, answers a little later."),
    _row(r"now=\$\(scontrol show job", "asks; an answer is enough.", _SCONTROL),
    _row(r'sleep "\$pause"', "waits."),
    _row(
        r'if \[ -n "\$now" \] && \[\[ ',
        "a job that Slurm itself is ending or starts anew must not be requeued: it may be one that somebody cancelled.",
        _SCONTROL,
    ),
    _row(
        r'elif \[ "\$restart" -ge (?P<most>\d+) \]',
        "{most} restarts are the most; without a bound, a job that never gets on would go round for ever.",
    ),
    _row(r"ended (?P<how>\w+)", "noted as {how}."),
    _row(r'echo "(?:error|hpctrain): (?:restarted|Slurm does not requeue|job \$job is requeued)', "says so."),
    _row(
        r'if scontrol requeue "\$job"',
        "back into the queue, under the same number. The log goes on in the same file (--open-mode=append).",
        _SCONTROL,
    ),
    _row(r'if \[ "\$status" -ne 85 \]', "when the run is over, one way or another,", _BASH, END),
    _row(r'note "\$over"', "the jobs of the chain that still wait find this, and end at once."),
)
