//! Tests of modules of the build script: the comparison of bindgen's output with the committed copy, and of headers. Most tests
//! of headers need libclang, and are skipped without it.

#[path = "../../build/bindings.rs"]
#[allow(dead_code)]
mod bindings;
#[path = "../../build/check_header/compare.rs"]
mod compare;
#[path = "../../build/check_header/declarations.rs"]
mod declarations;
#[path = "../../build/generated.rs"]
#[allow(dead_code)]
mod generated;

mod check_header;
mod copy;

use std::path::Path;
use std::sync::LazyLock;

/// Returns the root of the package.
fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Looks for libclang, which bindgen needs, and prints why it is absent.
fn libclang() -> Option<()> {
    static LIBCLANG: LazyLock<Result<(), String>> = LazyLock::new(bindings::find_libclang);
    LIBCLANG.as_ref().inspect_err(|reason| println!("skipped: {reason}")).ok().copied()
}
