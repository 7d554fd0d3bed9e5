# shellcheck shell=bash disable=SC2034 # variables for the scripts
# Functions of the job scripts that hpctrain renders: run records, signals, requeue, exit codes.
# `hpctrain render` writes this file once and never changes it: queued jobs source it when they start.
#
# In the batch script, on the first node, in this order: hpctrain_start, hpctrain_begin,
# hpctrain_free_port, hpctrain_run, hpctrain_finish. In each task of srun: hpctrain_node, hpctrain_wait.
# Variables for the script and its hooks: tag, run, job, index, attempt, code, status, reason.
export HPCTRAIN_LIBRARY="${BASH_SOURCE[0]}"
code=. study='' first_node=() notify_on='' notify_command='' notify_webhook='' training=''

# fail PROBLEM FIX: end the job with an error that says what to type.
fail() {
    echo "error: $1" >&2
    echo "fix: $2" >&2
    exit 1
}

# note FILE FORMAT VALUES...: write FILE whole or not at all; others may read it meanwhile.
# shellcheck disable=SC2059
note() { printf "${@:2}" >"$1.$HPCTRAIN_ATTEMPT" && mv "$1.$HPCTRAIN_ATTEMPT" "$1"; }

# hpctrain_start NAME [RUN]: refuse to train on a login node; link the logs of the newest job.
hpctrain_start() {
    if [ -z "${SLURM_JOB_ID-}" ]; then
        if command -v sbatch >/dev/null; then
            echo "error: this is a batch script: bash would run it on this machine, not on a compute node" >&2
            echo "fix: sbatch $0 # or, on this machine: hpctrain submit --local --wait $0" >&2
            exit 2
        fi
        exec hpctrain submit --local --wait ${2:+--run-id "$2"} "$0"
    fi
    local number=$SLURM_JOB_ID stream link
    [ -z "${SLURM_ARRAY_TASK_ID-}" ] || number=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    for stream in output error; do
        link="logs/${stream}_$1.log"
        if [ -L "$link" ] || [ ! -e "$link" ]; then
            ln -sfn "${stream}_$1_$number.log" "$link" || true
        else # a regular file is somebody's data
            echo "warning: $link is a file and not a link, so it stays; follow logs/${stream}_$1_$number.log" >&2
        fi
    done
}

# hpctrain_secret NAME [FILE]: export a secret from a file that only its owner can read, or require it
# from the shell that submitted.
hpctrain_secret() {
    local mode value
    if [ $# -eq 1 ]; then
        [ -n "${!1-}" ] || fail "$1 is not set" "export $1 in the shell that submits"
        return
    fi
    mode=$(stat -L -c %a "$2" 2>/dev/null || stat -L -f %Lp "$2") || fail "cannot read the secret $1" "ls -l $(printf %q "$2")"
    [[ $mode == [46]00 ]] || fail "others can read $2" "chmod 600 $(printf %q "$2")"
    value=$(<"$2")
    [ -n "$value" ] || fail "$2 is empty" "ls -l $(printf %q "$2")"
    export "$1=$value"
}

# hpctrain_begin NAME RUN [--array OFFSET] [--stage STAGE] [--script FILE] [--chain]: make runs/RUN/,
# or continue it, and record this attempt. An empty RUN is NAME-JOBID.
# --array: a run for each task, numbered from OFFSET; --script: your own training script, which gets
# the signals itself; --chain: this job is one of several that continue each other.
hpctrain_begin() {
    local name=$1 stage='' array='' chain='' begins end
    tag=${2:-$1-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}} script=''
    shift 2
    while [ $# -gt 0 ]; do
        case $1 in
            --array) array=$2 && shift ;;
            --stage) stage=$2 && shift ;;
            --script) script=$2 && shift ;;
            --chain) chain=1 ;;
        esac
        shift
    done
    [[ $tag =~ ^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$ ]] || fail "'$tag' cannot be the name of a run" "letters, digits and . _ - only"
    run=$tag${stage:+_$stage} job=$SLURM_JOB_ID index=null
    if [ -n "$array" ]; then
        index=$((SLURM_ARRAY_TASK_ID + array))
        run+=_$index job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    elif [ -n "${SLURM_ARRAY_TASK_ID-}" ]; then
        fail "this script is one job, and sbatch --array makes several that would share one run" "hpctrain render --array LIST"
    fi
    export HPCTRAIN_TAG="$tag" HPCTRAIN_RUN_ID="$run" HPCTRAIN_RUN_DIR="$PWD/runs/$run"
    restart=${SLURM_RESTART_COUNT:-0} # not set in a job that starts for the first time
    export HPCTRAIN_ATTEMPT="$SLURM_JOB_ID.$restart"
    # Slurm reuses job IDs: the records of an older job with this ID stay as they are.
    [ ! -e "$HPCTRAIN_RUN_DIR/attempts/$HPCTRAIN_ATTEMPT" ] || HPCTRAIN_ATTEMPT+=".$(date +%s)"
    attempt="$HPCTRAIN_RUN_DIR/attempts/$HPCTRAIN_ATTEMPT"
    mkdir -p "$HPCTRAIN_RUN_DIR"
    [ -z "$stage" ] || stage="\"$stage\""
    if [ ! -e "$HPCTRAIN_RUN_DIR/run.json" ]; then
        note "$HPCTRAIN_RUN_DIR/run.json" '{"schema": 1, "run_id": "%s", "tag": "%s", "name": "%s", "created": %s, "index": %s, "stage": %s}\n' \
            "$run" "$tag" "$name" "$(date +%s)" "$index" "${stage:-null}"
    fi
    mkdir -p "$attempt" # after run.json: others read it meanwhile, and ask which launch it belongs to
    hpctrain_keep
    note "$attempt/start.json" '{"schema": 1, "job_id": "%s", "slurm_job_id": "%s", "cluster": "%s", "restart": %s, "host": "%s", "at": %s}\n' \
        "$job" "$SLURM_JOB_ID" "${SLURM_CLUSTER_NAME-}" "$restart" "${SLURMD_NODENAME-}" "$(date +%s)"
    # A requeued job appends to the logs of the attempt before: this line is where it begins.
    begins="hpctrain: attempt $HPCTRAIN_ATTEMPT of the run $run begins on ${SLURM_JOB_NODELIST-} at $(date +%Y-%m-%dT%H:%M:%S%z)"
    echo "$begins"
    [ "$restart" -eq 0 ] || echo "$begins" >&2
    over=''
    if [ -n "$chain" ]; then
        over="$HPCTRAIN_RUN_DIR/over" # an earlier job of the chain has ended the run
        if [ -e "$over" ]; then
            echo "hpctrain: the run $run is over ($(<"$over")); to go on with it: hpctrain resubmit $run"
            rm -r "$attempt"
            exit 0
        fi
    fi
    launch="runs/.launches/$tag" # what `hpctrain submit` recorded: config, code, scripts
    if [ -L "$launch/code" ]; then
        HPCTRAIN_CODE=$(cd "$launch/code" && pwd -P) || fail "the copy of the code is gone" "hpctrain resubmit $tag --new-code"
        export HPCTRAIN_CODE
        if [[ -n $script && $script != /* && $script != ../* ]]; then
            code=$HPCTRAIN_CODE
            export PYTHONPATH="$HPCTRAIN_CODE${PYTHONPATH:+:$PYTHONPATH}"
        fi
    fi
    unset HPCTRAIN_FORWARD_SIGNALS
    [ -z "$script" ] || export HPCTRAIN_FORWARD_SIGNALS=1
    if [ -d "$launch" ] && [ ! -e "$HPCTRAIN_RUN_DIR/launch" ]; then
        ln -s "../.launches/$tag" "$HPCTRAIN_RUN_DIR/launch" || true
    fi
    if [ -n "$array" ]; then
        mkdir -p "$launch"
        note "$launch/${tag}_$index.id" '%s\n' "$run"
        echo "Exported run_id to <<< ${tag}_$index.id >>>"
    fi
    # When the time limit ends the job: the training saves before that. Slurm sets it since 23.02.
    if [ -z "${SLURM_JOB_END_TIME-}" ]; then
        end=$(scontrol show job -o "$job" | grep -o " EndTime=[0-9][0-9T:-]*" || true)
        [ -z "$end" ] || SLURM_JOB_END_TIME=$(date -d "${end#*=}" +%s)
        export SLURM_JOB_END_TIME
    fi
}

# Keep the script and this file with the run: an archive of the run shows, and can repeat, what ran.
hpctrain_keep() {
    [ -e "$HPCTRAIN_RUN_DIR/script.sbatch" ] || cp "$0" "$HPCTRAIN_RUN_DIR/script.sbatch"
    if [ "$HPCTRAIN_LIBRARY" != "$0" ]; then
        [ -e "$HPCTRAIN_RUN_DIR/${HPCTRAIN_LIBRARY##*/}" ] || cp "$HPCTRAIN_LIBRARY" "$HPCTRAIN_RUN_DIR/"
    else # render --standalone: the other nodes cannot read the script, so they source a copy
        export HPCTRAIN_LIBRARY="$attempt/job.sh"
        sed -n '/^# >>> hpctrain functions/,/^# <<< hpctrain functions/p' "$0" >"$HPCTRAIN_LIBRARY"
    fi
}

# hpctrain_require STAGE: end the job if an earlier stage has not completed.
hpctrain_require() {
    # shellcheck disable=SC2012 # the names are numbers
    grep -qs '"outcome": "completed"' "$(ls -td runs/"${tag}_$1"/attempts/*/ | head -n 1)end.json" || fail "the stage $1 has not completed" "hpctrain resubmit $tag"
}

# hpctrain_free_port: while something listens at MASTER_PORT, take the next one.
hpctrain_free_port() {
    while (exec 3<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do
        MASTER_PORT=$((MASTER_PORT + 1))
    done
    echo "rendezvous: $MASTER_ADDR:$MASTER_PORT"
}

# hpctrain_point {arguments|environment|file} TABLE: give this array task its point of the sweep.
# A line of TABLE holds the values as JSON, a tab, and the same values as words of bash.
hpctrain_point() {
    local line
    line=$(sed -n "$((index + 1)){p;q;}" "$2" || true)
    [ -n "$line" ] || fail "there is no combination $index in $2" "hpctrain render"
    export HPCTRAIN_POINT="$HPCTRAIN_RUN_DIR/point.json"
    note "$HPCTRAIN_POINT" '%s\n' "${line%%$'\t'*}"
    case $1 in
        arguments) eval "command+=(${line#*$'\t'})" ;;
        environment) eval "export ${line#*$'\t'}" ;;
    esac
}

# hpctrain_study NAME FILE: add the values that this trial tries to `command`; a requeued trial gets
# the same ones. `first_node` is the container command, if there is a container.
hpctrain_study() {
    local answer=0
    study=$1
    export HPCTRAIN_TRIAL="$HPCTRAIN_RUN_DIR/trial.json"
    hpctrain_python hpctrain.training.trial ask "$2" || answer=$?
    if [ "$answer" -eq 3 ]; then # the study has all its trials
        status=0 reason=no-trial-left
        note "$attempt/end.json" '{"schema": 1, "at": %s, "status": 0, "reason": "no-trial-left", "outcome": "completed"}\n' "$(date +%s)"
        hpctrain_tell completed "$run completed: no trial is left"
        exit 0
    fi
    [ "$answer" -eq 0 ] || fail "the study $1 gave no trial" "hpctrain tune status $1"
    mapfile -t -O "${#command[@]}" command <"$HPCTRAIN_RUN_DIR/trial.words"
}

# hpctrain_python MODULE ARGUMENTS...: run a Python module here, in the job's container if it has one.
hpctrain_python() { ${first_node[@]+"${first_node[@]}"} python -m "$@"; }

# hpctrain_run srun ...: run the training and wait for it, ready for signals; then set `status`.
hpctrain_run() {
    srun='' status=0 reason='' output_at=null
    if [ -n "$script" ]; then
        trap ': >"$attempt/stop"; scancel --signal=TERM "$job" || true' TERM # srun itself would end the training at once
        trap 'hpctrain_forward USR1 "$srun"' USR1                            # srun forwards it
    else
        trap ': >"$attempt/stop"' TERM USR1
    fi
    "$@" &
    srun=$!
    while kill -0 "$srun" 2>/dev/null; do wait "$srun" || true; done
    wait "$srun" || status=$?
    # When the output last grew: a training that hung had been silent for long.
    [ ! -f "/proc/$$/fd/1" ] || output_at=$(stat -L -c %Y "/proc/$$/fd/1" || echo null)
    # Launchers hide the exit codes of their processes, so the training leaves its own in a file.
    if [ -s "$attempt/exit" ]; then
        read -r status reason <"$attempt/exit" || true
    fi
    [ -z "$study" ] || hpctrain_python hpctrain.training.trial tell "$status" "$reason" ||
        echo "warning: the study has not heard how this trial ended; to tell it: hpctrain tune status $study" >&2
}

# hpctrain_finish [--requeue MAX | --chain]: record how the attempt ended and end the job. A training
# that saved and is not done (exit code 85) is requeued, or left to the next job of the chain.
hpctrain_finish() {
    local mode=${1-} now='' pause
    case $status in
        0) hpctrain_ended completed ;;
        86) hpctrain_ended stopped ;;
        85)
            if [ "$mode" = --chain ]; then
                hpctrain_ended requeued
            elif [ "$mode" != --requeue ]; then
                hpctrain_ended stopped
                echo "fix: hpctrain resubmit $run" >&2
            else
                for pause in 5 20 0; do # the controller may be busy, or restart
                    now=$(scontrol show job -o "$job") && break
                    sleep "$pause"
                done
                if [ -n "$now" ] && [[ $now != *" Restarts=$restart "* || $now != *" JobState=RUNNING "* ]]; then
                    hpctrain_ended interrupted # Slurm itself ends or requeues the job
                elif [ "$restart" -ge "$2" ]; then
                    hpctrain_ended stopped
                    echo "error: restarted $restart times, and that is the most (--max-restarts)" >&2
                    echo "fix: hpctrain resubmit $run" >&2
                else
                    hpctrain_ended requeued
                    # The name of an array task: the bare number of an array means all its tasks.
                    if scontrol requeue "$job"; then
                        echo "hpctrain: job $job is requeued, and resumes from its newest checkpoint"
                        exit 0
                    fi
                    hpctrain_ended stopped
                    echo "error: Slurm does not requeue job $job" >&2
                    echo "fix: hpctrain resubmit $run" >&2
                fi
            fi
            ;;
        # A job that was asked to stop may end with any code.
        *) if [ -e "$attempt/stop" ]; then hpctrain_ended interrupted; else hpctrain_ended failed; fi ;;
    esac
    if [ -n "$over" ] && [ "$status" -ne 85 ]; then
        note "$over" 'exit code %s\n' "$status" # the rest of the chain has nothing to do
    fi
    case $outcome in
        completed | failed | stopped | interrupted)
            hpctrain_tell "$outcome" "$run $outcome: job $job on ${SLURMD_NODENAME-}, exit code $status${reason:+, $reason}"
            ;;
    esac
    echo "hpctrain: job $SLURM_JOB_ID ended with exit code $status"
    exit "$status"
}

hpctrain_ended() {
    outcome=$1
    note "$attempt/end.json" '{"schema": 1, "at": %s, "status": %s, "reason": "%s", "outcome": "%s", "output_at": %s}\n' \
        "$(date +%s)" "$status" "${reason//[^a-z-]/}" "$outcome" "$output_at"
}

# hpctrain_notify OUTCOMES COMMAND WEBHOOK: who hears of the end of the run; a notification that fails
# does not change how the job ended. OUTCOMES: completed,failed,stopped.
hpctrain_notify() { notify_on=$1 notify_command=$2 notify_webhook=$3; }

hpctrain_tell() {
    local on=",$notify_on,"
    [ "$1" != interrupted ] || on=${on/,stopped,/,interrupted,}
    [[ $on == *",$1,"* ]] || return 0
    if [ -n "$notify_command" ]; then
        HPCTRAIN_OUTCOME=$1 HPCTRAIN_REASON=$reason HPCTRAIN_STATUS=$status timeout 60 "$notify_command" "$2" </dev/null ||
            echo "warning: $notify_command, which was to tell of the end, failed" >&2
    fi
    [ -z "$notify_webhook" ] || hpctrain_python hpctrain.runs.notify "$notify_webhook" "$1" "$2" || true
}

# hpctrain_node GPUS: in each task of srun, before the training: check the GPUs, keep compiler caches
# on the node, turn signals into a checkpoint.
hpctrain_node() {
    set -euo pipefail
    local gpus=${SLURM_GPUS_ON_NODE:-$1}
    if [ "$1" -eq 0 ]; then
        export CUDA_VISIBLE_DEVICES= # the job runs on the CPU: hide the GPUs of other jobs
    elif [ "$gpus" -lt "$1" ]; then
        echo "error: $SLURMD_NODENAME has $gpus of the $1 GPUs that the job was rendered for" >&2
        echo "fix: hpctrain render --gpus $gpus" >&2
        exit 1
    elif [ "$gpus" -gt "$1" ]; then
        echo "warning: $SLURMD_NODENAME has $gpus GPUs and the job uses $1; to use all: hpctrain render --gpus $gpus" >&2
    fi
    hpctrain_interfaces
    hpctrain_cache
    # Slurm signals this shell and nothing that it started.
    if [ -n "${HPCTRAIN_FORWARD_SIGNALS-}" ]; then
        trap 'hpctrain_forward TERM "$training"' TERM
        trap 'hpctrain_forward USR1 "$training"' USR1
    else # the training looks for this file; a launcher that gets a signal ends the training at once
        trap ': >"$HPCTRAIN_RUN_DIR/attempts/$HPCTRAIN_ATTEMPT/stop"' TERM USR1
    fi
}

# hpctrain_cache: keep compiled kernels on the node: on a shared file system the nodes would overwrite
# each other's. A run that is restarted gets them back at the same path, which Triton writes into them.
hpctrain_cache() {
    local key
    key=$(cksum <<<"$HPCTRAIN_RUN_DIR")
    key=${key%% *} kernels="$HPCTRAIN_RUN_DIR/compile-cache/$SLURM_PROCID.tar" copied=''
    copies=hpctrain-data-$key-$SLURM_NODEID shared="$HPCTRAIN_RUN_DIR/attempts/$HPCTRAIN_ATTEMPT/data-$SLURM_NODEID"
    cache=/tmp/hpctrain-$key-$SLURM_PROCID
    [ ! -d "${TMPDIR-}" ] || cache=$TMPDIR/${cache##*/} # one of the login node may not exist here
    rm -rf "$cache" 2>/dev/null || true                 # left by a start that was killed
    mkdir -m 700 "$cache" 2>/dev/null || cache=$(mktemp -d "/tmp/hpctrain-$SLURM_JOB_ID-XXXXXX")
    [ ! -e "$kernels" ] || tar -xf "$kernels" -C "$cache" || true
    export TRITON_CACHE_DIR="$cache/triton" TORCHINDUCTOR_CACHE_DIR="$cache/inductor" TORCH_EXTENSIONS_DIR="$cache/extensions"
    trap hpctrain_clean EXIT
}

# What a task leaves on its node goes; its compiled kernels are saved if the run is not over.
hpctrain_clean() {
    local status=$?
    # Launchers hide the exit codes of their processes; the training writes its own.
    { read -r status _ <"$HPCTRAIN_RUN_DIR/attempts/$HPCTRAIN_ATTEMPT/exit"; } 2>/dev/null || true
    if [ "$status" -eq 0 ]; then
        rm -f "$kernels"
    elif [ -n "$(find "$cache" -type f | head -n 1)" ]; then
        { mkdir -p "${kernels%/*}" && tar -cf "$kernels.new" -C "$cache" . && mv "$kernels.new" "$kernels"; } || rm -f "$kernels.new"
    fi
    rm -rf "$cache"
    if [ -d "$shared.left" ]; then # several tasks read the copy: the last one of the node removes it
        : >"$shared.left/$SLURM_LOCALID"
        if [ -e "$shared" ]; then
            copied=''
            [ "$(find "$shared.left" -type f | wc -l)" -lt "$tasks" ] || read -r copied <"$shared"
        fi
    fi
    [ -z "$copied" ] || rm -rf "$copied"
}

# hpctrain_data TASKS SOURCE [DIRECTORY]: copy the dataset, or unpack the archive, to storage of this
# node, once for its TASKS tasks; HPCTRAIN_DATA is where the training reads it.
hpctrain_data() {
    tasks=$1
    local source=${2%/}
    shift 2
    [[ $source == /* ]] || source=$PWD/$source
    if [ "$tasks" -gt 1 ]; then
        mkdir -p "$shared.left"
        if [ "$SLURM_LOCALID" -eq 0 ]; then
            hpctrain_copy "$source" "$@"
            printf '%s\n' "$copied" "$HPCTRAIN_DATA" >"$shared.new"
            mv "$shared.new" "$shared"
        fi
        until [ -e "$shared" ]; do sleep 0.2; done
        { read -r copied && read -r HPCTRAIN_DATA; } <"$shared"
    else
        hpctrain_copy "$source" "$@"
    fi
    export HPCTRAIN_DATA
    # Of the node's directories, apptainer shows /tmp and the home directory only.
    export APPTAINER_BIND="$HPCTRAIN_DATA${APPTAINER_BIND:+,$APPTAINER_BIND}" SINGULARITY_BIND="$HPCTRAIN_DATA${SINGULARITY_BIND:+,$SINGULARITY_BIND}"
}

hpctrain_copy() {
    local source=$1 base size free began=$SECONDS archive='' bases=("${SLURM_TMPDIR-}" "${TMPDIR-}" /tmp)
    [ -z "${2-}" ] || bases=("$2")
    [[ $source != *.tar && $source != *.tar.* && $source != *.tgz ]] || archive=1
    [ -e "$source" ] || fail "$SLURMD_NODENAME does not see the dataset $source" "ls -ld $(printf %q "$source")"
    size=$(du -skL "$source" | cut -f 1)
    for base in "${bases[@]}"; do
        [[ -d $base && -w $base ]] || continue
        if [ -z "${2-}" ]; then
            case $(stat -f -c %T "$base" 2>/dev/null) in
                nfs* | lustre | gpfs | beegfs | ceph | panfs | afs | smb*) continue ;; # shared: nothing is gained
                tmpfs | ramfs) [ "$base" = "${SLURM_TMPDIR-}" ] || continue ;;         # memory, which counts as the job's
            esac
        fi
        rm -rf "$base/$copies"-* # left by a start that was killed
        free=$(df -Pk "$base" | awk 'END { print $4 }')
        if [ "$free" -le "$size" ]; then
            echo "note: $base on $SLURMD_NODENAME has $((free / 1024)) MiB free, and $source needs $((size / 1024)) MiB" >&2
            continue
        fi
        copied=$(mktemp -d "$base/$copies-XXXXXX") || continue
        if [ -z "$archive" ] && cp -RL "$source" "$copied/"; then
            HPCTRAIN_DATA=$copied/${source##*/}
        elif [ -n "$archive" ] && tar -xf "$source" -C "$copied"; then
            HPCTRAIN_DATA=$(find "$copied" -mindepth 1 -maxdepth 1)
            [ -d "$HPCTRAIN_DATA" ] || HPCTRAIN_DATA=$copied # more than one directory
        else
            rm -rf "$copied"
            copied=''
            continue
        fi
        echo "hpctrain: $source is on $SLURMD_NODENAME in $HPCTRAIN_DATA: $((size / 1024)) MiB in $((SECONDS - began)) s"
        return
    done
    [ -z "$archive" ] || fail "no local directory of $SLURMD_NODENAME has room to unpack $source" "name one as data.directory in config.yaml"
    echo "warning: no local directory of $SLURMD_NODENAME has room for $source; the training reads it there" >&2
    HPCTRAIN_DATA=$source
}

# hpctrain_forward SIGNAL PID: pass a signal on; what has not started ends here.
hpctrain_forward() {
    [ -n "$2" ] || exit 143
    kill -"$1" "$2" || true
}

# NCCL and gloo fail on a network interface that the node lacks; without the variable they choose one.
# NCCL accepts a prefix of a name, gloo only a whole name.
hpctrain_interfaces() {
    local has variable wanted names end
    has=$(cd /sys/class/net && echo *) || true
    for variable in NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME; do
        wanted=${!variable-} end=''
        names=${wanted#=}
        [ "$variable" = NCCL_SOCKET_IFNAME ] || end=" "
        if [[ -n $has && -n $wanted && $wanted != ^* && ! " $has " =~ " "(${names//,/|})"$end" ]]; then
            [ "$SLURM_LOCALID" -ne 0 ] || echo "warning: $SLURMD_NODENAME has no network interface $wanted, so $variable is unset; it has $has" >&2
            unset "$variable"
        fi
    done
}

# hpctrain_hooks FILE...: run your hooks once on each node; its other tasks wait for them.
hpctrain_hooks() {
    local file ready="$HPCTRAIN_RUN_DIR/attempts/$HPCTRAIN_ATTEMPT/ready-$SLURM_NODEID"
    if [ "$SLURM_LOCALID" -eq 0 ]; then
        for file in "$@"; do
            bash "$file" || {
                echo "error: the hook $file failed on $SLURMD_NODENAME with exit code $?" >&2
                printf "fix: bash -x %q\n" "$file" >&2
                exit 1
            }
        done
        : >"$ready"
    fi
    until [ -e "$ready" ]; do sleep 0.2; done
}

# hpctrain_wait COMMAND...: run COMMAND in the background and wait for it. bash handles a signal only
# between two commands, and `wait` ends early for it.
hpctrain_wait() {
    "$@" &
    training=$!
    while kill -0 "$training" 2>/dev/null; do wait "$training" || true; done
    wait "$training"
}
