//! The release that introduced each item of the headers.

generated! {
    mod table = "since.rs";
}

pub use table::SINCE;

/// Returns the version code (as in [`NCCL_VERSION_CODE`](super::NCCL_VERSION_CODE)) of the first examined release
/// that has `item`: a function, an enum value, or a field written `ncclConfig.minCTAs`.
#[must_use]
pub fn since(item: &str) -> Option<u32> {
    SINCE.iter().find(|(name, _)| *name == item).map(|(_, code)| *code)
}
