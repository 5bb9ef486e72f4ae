//! The checkout.

use std::path::Path;

/// Returns the root of the checkout that this program was built from.
pub(crate) fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest)
}
