# Sourced first by every script in this directory: settings and shared functions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ulimit -c 0 # no core files

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

# Compares a program's output with a pattern, and its exit status with 0 or the pattern in `exit_status`.
prints() { # pattern, command...
    local pattern=$1 printed status=0 expected=${exit_status:-0}
    shift
    printed=$("$@" 2>&1) || status=$?
    [[ $printed == $pattern && $status == $expected ]] ||
        fail "$* ends with status $status and prints '$printed'; expected $expected and '$pattern'"
    echo "$printed"
}
fails_with() { exit_status='[1-9]*' prints "*$1*" "${@:2}"; } # part of the output, command...

# Prints the only code block of a language in a section of a Markdown file.
block() { # file, language, section
    local block
    block=$(sed -n "/^## $3/,/^## /p" "$1" | sed -n "/^\`\`\`$2\$/,/^\`\`\`\$/p")
    [[ $(grep -c '^```' <<<"$block") == 2 ]] || fail "not exactly one block: $*" >&2
    sed '1d;$d' <<<"$block"
}

need() { # command, Debian packages that have it
    local apt_get=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
    command -v "$1" >/dev/null || { "${apt_get[@]}" update && "${apt_get[@]}" install --yes --no-install-recommends "${@:2}"; }
}
need_libclang() { compgen -G '/usr/lib/llvm-*/lib/libclang[.-][s0-9]*' >/dev/null || need "no command" libclang-dev; }
need_python() { python3 -c 'import pip, ensurepip' 2>/dev/null || need "no command" python3-pip python3-venv; }
