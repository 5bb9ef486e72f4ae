# shellcheck shell=bash disable=SC2034
# Sourced first by every script in this directory: settings and shared functions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

oldest=2.13.4 newest=2.32.3 # NCCL versions
host=$(rustc -vV | sed -n 's/^host: //p')
# Downloads, which outlive the checkout.
cache=${LIBNCCL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/libnccl}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# Builds that only this part can use.
own=$target/ci/$(basename "$0")
mkdir -p "$own" "$cache"
# Files of this run, outside the checkout, because its .cargo/config.toml and workspace would apply.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Nothing is built twice, and requests to a registry are retried.
export CARGO_INCREMENTAL=0 CARGO_NET_RETRY=${CARGO_NET_RETRY:-10} PIP_RETRIES=${PIP_RETRIES:-10}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_QUIET=1
# With more threads than processors, tests with time limits fail on a busy machine.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(nproc)}

step() { printf '\n--- %s (%ss)\n' "$*" "$SECONDS"; }
fail() { echo "error: $*"; exit 1; }
skip() { echo "skipped: $*"; exit 0; }

# Runs a command that must fail and print a text.
fails_with() { # text, command...
    local text=$1 printed
    shift
    if printed=$("$@" 2>&1); then fail "$* succeeds; expected '$text'"; fi
    grep -m 1 -F -- "$text" <<<"$printed" || fail "$* prints '$printed'; expected '$text'"
}

# Compares a program's output with a pattern, and its exit status with 0 or the pattern in `exit_status`.
prints() { # pattern, command...
    local pattern=$1 printed status=0 expected=${exit_status:-0}
    shift
    printed=$("$@" 2>&1) || status=$?
    # shellcheck disable=SC2053
    [[ $printed == $pattern && $status == $expected ]] ||
        fail "$* ends with status $status and prints '$printed'; expected $expected and '$pattern'"
    echo "$printed"
}

# Prints the only code block of a language in a Markdown file, or in one of its sections.
block() { # file, language, [section]
    local text fence="\`\`\`$2"
    text=$(sed -n "/^## ${3:-}/,/^## /p" "$1")
    [[ -n ${3:-} ]] || text=$(<"$1")
    [[ $(grep -cx "$fence" <<<"$text") == 1 ]] || fail "not exactly one block: $*" >&2
    sed -n "/^$fence\$/,/^\`\`\`\$/p" <<<"$text" | sed '1d;$d'
}

# Builds all tests and programs. With fewer packages, dependencies would have other features and would be rebuilt.
build_workspace() { cargo test --quiet --workspace --no-run; }

# Compiles a C program with NVIDIA's CUDA headers, and links it with the emulated runtime and with NCCL.
compile_for_cuda() { # CUDA's major version, source, program, argument...
    local includes
    mapfile -t includes < <(cargo xtask cudart-package "$1" | sed 's|.*|-isystem&/include|')
    cc -std=c11 -D_GNU_SOURCE -pthread "${includes[@]}" -I vendor-headers -I crates/cpu-so/tests/c -I cuda-emulation/runtime/tests/c \
        "$2" -o "$3" "${@:4}" "-l:libcudart.so.$1" -lnccl
}

# Installs a Python package whose hash is in a file.
pip_install() { # file, name==version, directory, [argument of pip...]
    python3 -m pip install --no-deps --only-binary=:all: --require-hashes --requirement <(grep "^$2 " "$1") --target "$3" "${@:4}"
}

apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }
need() { # command, Debian packages that have it
    command -v "$1" >/dev/null || { apt_get update && apt_get install --yes --no-install-recommends "${@:2}"; }
}
need_libclang() { compgen -G '/usr/lib/llvm-*/lib/libclang[.-][s0-9]*' >/dev/null || need "no command" libclang-dev; }
need_python() { python3 -c 'import pip, ensurepip' 2>/dev/null || need "no command" python3-pip python3-venv; }
need_cargo() { # subcommand, version: built once for a machine, without optimization, which saves minutes
    PATH=$PATH:$cache/tools/bin
    cargo "$1" --version 2>/dev/null || CARGO_TARGET_DIR=$own CARGO_PROFILE_DEV_DEBUG=0 \
        cargo install --quiet --locked --debug --root "$cache/tools" "cargo-$1@$2"
}

# Installs the libraries, the package libnccl_cpu as its wheel has it, and the newest PyTorch for CUDA 12 and 13, which take 11 GB of
# the cache. Python is then ${pythons[12]} and ${pythons[13]}.
declare -A torch=([12]=2.10.0 [13]=2.15.0) pythons=()
need_torch() { # directory of the libraries
    need_python
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "PyTorch, which needs Python 3.10: $(python3 -V)"
    cargo xtask cpu-so "$1"
    mkdir -p "$work/site/libnccl_cpu"
    cp crates/cpu-so/python/libnccl_cpu/*.py "$work/site/libnccl_cpu"
    ln -s "$1" "$work/site/libnccl_cpu/lib"
    ln -s "$1" "$work/site/libnccl_cpu/cuda"
    export PYTHONPATH=$work/site
    local cuda environment
    for cuda in "${!torch[@]}"; do
        environment=$cache/torch-cu$cuda
        pythons[$cuda]=$environment/bin/python
        [[ ! -f $environment/complete ]] || continue
        python3 -m venv --clear "$environment"
        "${pythons[$cuda]}" -m pip install --no-deps "torch==${torch[$cuda]}"
        # Not Triton, whose kernels need a GPU.
        "${pythons[$cuda]}" -c 'import importlib.metadata
for line in importlib.metadata.requires("torch"):
    if "extra ==" not in line and not line.startswith("triton"): print(line)' >"$work/requirements"
        "${pythons[$cuda]}" -m pip install --requirement "$work/requirements" numpy
        touch "$environment/complete"
    done
}
