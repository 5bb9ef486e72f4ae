//! The text of `nccl --version`.

use std::env::consts::{ARCH, OS};
use std::sync::LazyLock;

use libnccl::Version;

/// The version, and what the program was built with.
static LONG: LazyLock<String> = LazyLock::new(|| {
    let features = if cfg!(feature = "link") { "dlopen, link, cpu" } else { "dlopen, cpu" };
    let environment = if cfg!(target_env = "gnu") { "-gnu" } else { "" };
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let version = env!("CARGO_PKG_VERSION");
    let header = Version::HEADER;
    format!(
        "{version}\nlibnccl:  {version}\nheader:   NCCL {header}\nfeatures: {features}\ntarget:   {ARCH}-{OS}{environment}, {profile}"
    )
});

pub(crate) fn long() -> &'static str {
    &LONG
}
