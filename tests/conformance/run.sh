#!/bin/sh
# Tests libnccl on this machine's GPU:
#
#     ./run.sh [FILE]
#
# FILE is the libnccl.so.2 to test; without it, the one that is found is tested. Prints each step, and a summary at the
# end. The exit status is 0 if every step succeeded. Steps that need a newer NCCL are listed as skipped.

here=$(cd "$(dirname "$0")" && pwd) || exit 1
[ $# -eq 0 ] || export LIBNCCL_PATH="$1"

summary=
status=0

note() { # result, step
    summary="$summary$1  $2
"
}

# Runs a step with a time limit, which should never be reached: the programs have their own limits.
step() { # what, seconds, command and its arguments
    what=$1 seconds=$2
    shift 2
    printf '\n=== %s\n' "$what"
    timeout --kill-after=10 "$seconds" "$@"
    code=$?
    if [ $code -eq 0 ]; then
        note "ok     " "$what"
    else
        note "FAILED " "$what (exit status $code)"
        status=1
    fi
}

printf '=== machine\n'
date -u '+date    %Y-%m-%d %H:%M UTC'
printf 'kernel  %s\n' "$(uname -sr)"
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_mode,mig.mode.current --format=csv
else
    head -n 1 /proc/driver/nvidia/version 2>/dev/null || printf 'driver  unknown\n'
fi

findings=$("$here/nccl" doctor --json 2>/dev/null)
version=$(printf '%s\n' "$findings" | sed -n 's/.*"version": *"\([0-9.]*\)".*/\1/p' | head -n 1)
gpus=$(printf '%s\n' "$findings" | sed -n 's/.*"gpus": *\([0-9]*\).*/\1/p' | head -n 1)
if [ "${gpus:-0}" -eq 0 ] || [ -z "$version" ]; then
    "$here/nccl" doctor
    printf '\nThere is nothing to test: no GPU, or no NCCL.\n'
    exit 1
fi

step "nccl doctor" 60 "$here/nccl" doctor
step "conformance" 1800 "$here/conformance" --color never GPU

shared=$(printf '2.30.3\n%s\n' "$version" | sort -V | head -n 1)
for operation in all_reduce all_gather broadcast reduce reduce_scatter alltoall gather scatter sendrecv hypercube; do
    step "nccl bench $operation, one rank" 60 \
        "$here/nccl" bench $operation --ranks 1 -b 1K -e 64M -f 16 -n 10 -w 2
    if [ "$shared" = 2.30.3 ]; then
        step "nccl bench $operation, two ranks on one GPU" 90 \
            env NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 \
            "$here/nccl" bench $operation --ranks 2 --processes -b 1K -e 4M -f 16 -n 5 -w 1
    else
        note "skipped" "nccl bench $operation, two ranks on one GPU: needs NCCL 2.30.3, this is $version"
    fi
done

for recipe in restart replace revoke; do
    if [ "$shared" = 2.30.3 ]; then
        step "recovery, $recipe" 120 env NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 "$here/recovery" 4 $recipe
    else
        note "skipped" "recovery, $recipe: four ranks on one GPU need NCCL 2.30.3, this is $version"
    fi
done

printf '\n=== summary, NCCL %s\n%s' "$version" "$summary"
exit $status
