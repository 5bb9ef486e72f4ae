//! The release that introduced each item of the headers.

generated! {
    mod table = "since.rs";
}

pub use table::SINCE;

/// Returns the version code (as in [`NCCL_VERSION_CODE`](super::NCCL_VERSION_CODE)) of the first examined release
/// that has `item`: a function, an enum value, or a field written `ncclConfig.minCTAs`.
#[must_use]
pub const fn since(item: &str) -> Option<u32> {
    let mut index = 0;
    while index < SINCE.len() {
        let (name, code) = SINCE[index];
        if is_equal(name.as_bytes(), item.as_bytes()) {
            return Some(code);
        }
        index += 1;
    }
    None
}

/// Compares two texts; `==` is not yet possible in a constant.
pub(crate) const fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while one.len() == other.len() && index < one.len() && one[index] == other[index] {
        index += 1;
    }
    one.len() == other.len() && index == one.len()
}
