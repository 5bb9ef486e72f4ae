//! The tests of a crate whose continuous integration `.ci/guides` runs.

#[cfg(feature = "nccl")]
#[test]
fn nccl_creates_an_id() {
    let nccl = libnccl::Nccl::load().unwrap();
    nccl.unique_id().unwrap();
    let is_linked = matches!(nccl.backend(), libnccl::Backend::Linked { .. });
    std::fs::write(if is_linked { "linked" } else { "loaded" }, "").unwrap();
}
