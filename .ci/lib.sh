# shellcheck shell=bash disable=SC2034
# Sourced first by every script in this folder: the root of the checkout, shared names and helpers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The newest release of NCCL that is supported.
newest=2.32.3
# Downloads that outlive the checkout.
cache=${LIBNCCL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/libnccl}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

# Beside other parts, tests have no more threads than there are processors; `.ci/test` runs alone, and has what the README's
# command has.
[[ $(basename "$0") =~ ^(run|test)$ ]] || export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(nproc)}

# A registry that does not answer at once is no failure.
export CARGO_NET_RETRY=${CARGO_NET_RETRY:-10} PIP_RETRIES=${PIP_RETRIES:-10}

# Two runs of one script in one folder would overwrite each other's builds: the second waits.
mkdir -p "$target/ci"
exec {own_turn}>"$target/ci/$(basename "$0").lock"
flock --nonblock "$own_turn" || { echo "waiting for another run of $(basename "$0")"; flock "$own_turn"; }

step() { printf '\n--- %s (%ss)\n' "$*" "$SECONDS"; }
fail() { echo "error: $*"; exit 1; }
skip() { echo "skipped: $*"; exit 0; }

# Whether a check that takes turns with others runs today: is_turn OWN_TURN TURNS. Days since 1970 are counted, as
# `cargo xtask headers --some` does.
is_turn() { [[ -n ${LIBNCCL_CI_ALL:-} ]] || (($(date +%s) / 86400 % $2 == $1)); }

# Builds all tests, and the programs, as `cargo test --workspace` does: for other packages, their dependencies would have other
# features, and be built again.
build_tests() { cargo test --quiet --workspace --no-run; }

has_nightly() { cargo +nightly --version >/dev/null 2>&1; }

# Runs apt-get once no other one runs: parts run side by side.
apt_get() { flock /tmp/libnccl-ci-apt apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }
install() { apt_get update && DEBIAN_FRONTEND=noninteractive apt_get install --yes "$@"; }
need_libclang() {
    # Not libclang-cpp.
    compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null ||
        compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null || install libclang-dev
}
need_pip() { python3 -m pip --version >/dev/null 2>&1 || install python3-pip; }
need_venv() { python3 -m ensurepip --version >/dev/null 2>&1 || install python3-venv; }
need_linkers() { # GNU ld and gold come with the C compiler
    { ld.lld --version && mold --version; } >/dev/null 2>&1 || install lld mold
}
need_valgrind() { valgrind --version >/dev/null 2>&1 || install valgrind; }
