//! `LIBNCCL_CHECK_HEADER` in builds of a crate that depends on libnccl.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::{cargo_check, write_dependent};

const HEADER: &str = include_str!("../../../vendor-headers/nccl.h");

/// Returns a crate that depends on libnccl with a feature.
fn dependent(feature: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    write_dependent(directory.path(), root, feature);
    directory
}

/// Builds the crate with a check of this header. Returns cargo's output: `Ok` if it succeeded.
fn check(dependent: &TempDir, header: &str, environment: &[(&str, &str)]) -> Result<String, String> {
    let path = dependent.path().join("nccl.h");
    fs::write(&path, header).expect("the header is written");
    let own = [("LIBNCCL_CHECK_HEADER", path.to_str().expect("its name is text"))];
    cargo_check(dependent.path(), &[], &[&own, environment].concat())
}

#[track_caller]
fn with(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old}");
    text.replace(old, new)
}

#[test]
#[ignore = "builds bindgen for each: .ci/run matrix"]
fn contradictions_fail_the_build_with_both_forms() {
    let broadcast = HEADER.find("ncclResult_t ncclBcast(").expect("ncclBcast is declared");
    let end = broadcast + HEADER[broadcast..].find(';').expect("it ends") + 1;
    let header = with(HEADER, &HEADER[broadcast..end], "");
    let header =
        with(&header, " ncclSend(const void *sendbuff, size_t", " ncclSend(const void *sendbuff, int");
    let init = " ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)";
    let swapped = " ncclCommInitRank(ncclComm_t *comm, int rank, ncclUniqueId commId, int nranks)";
    let header = with(&header, init, swapped);
    let header = with(&header, "ncclMax = 2", "ncclMax = 9");
    let header = with(&header, "    float estimatedTime;\n", "");
    let header = with(
        &header,
        "typedef struct ncclSimInfo_v22200 {",
        "typedef struct ncclSimInfo_v22200 { float estimatedTime;",
    );
    let header = with(&header, "NCCL_SPLIT_NOCOLOR -1", "NCCL_SPLIT_NOCOLOR -2");

    let stderr = check(&dependent("bindgen"), &header, &[]).expect_err("it fails");
    let rest = "sendbuff : * const c_void , count";
    for line in [
        &format!("ncclSend: ours: fn ( {rest} : usize ,"),
        &format!("; theirs: fn ( {rest} : c_int ,"),
        "ncclCommInitRank: ours: fn ( comm : * mut ncclComm_t , nranks : c_int , commId : ncclUniqueId , rank : c_int , ) -> \
         ncclResult_t; theirs: fn ( comm : * mut ncclComm_t , rank : c_int , commId : ncclUniqueId , nranks : c_int , ) -> \
         ncclResult_t\n",
        "ncclMax: ours: ncclRedOp_t (2); theirs: ncclRedOp_t (9)\n",
        "ncclSimInfo.estimatedTime: ours: field 3 : f32; theirs: field 0 : f32\n",
        "NCCL_SPLIT_NOCOLOR: ours: i32 = - 1; theirs: i32 = - 2\n",
        "ncclBcast: ours: fn ( buff : * mut c_void , count : usize , datatype : ncclDataType_t , root : c_int , comm : \
         ncclComm_t , stream : cudaStream_t , ) -> ncclResult_t (since 2.13.4); theirs: not declared\n",
    ] {
        assert!(stderr.contains(line), "{line} is not in {stderr}");
    }
    // Includes the other fields of the struct, which have moved.
    assert!(stderr.contains(", 9 contradict the bindings\n"), "{stderr}");
}

#[test]
#[ignore = "builds bindgen for each: .ci/run matrix"]
fn items_of_one_side_are_listed_and_fail_a_strict_build() {
    let dependent = dependent("bindgen");
    let strict = [("LIBNCCL_CHECK_HEADER_STRICT", "1")];
    let printed = check(&dependent, HEADER, &strict).expect("it builds");
    assert!(!printed.contains("LIBNCCL_CHECK_HEADER"));

    // The same path with other contents: cargo runs the check again.
    let header = with(HEADER, "typedef struct ncclComm ", "int ncclOwn(void);\ntypedef struct ncclComm ");
    let stderr = check(&dependent, &header, &[("LIBNCCL_CHECK_HEADER_STRICT", "0")]).expect("it builds");
    assert!(stderr.contains(", 1 only in the header, of 2.32.3; "), "{stderr}");
    let list = stderr
        .split_once("of 2.32.3; ")
        .and_then(|(_, rest)| rest.split_once(" lists them"))
        .map(|(list, _)| list);
    let list = fs::read_to_string(list.expect("the warning names a file")).expect("the list is there");
    assert!(list.ends_with("\nonly in the header, of 2.32.3:\n  ncclOwn: fn (  ) -> c_int\n"), "{list}");
    let stderr = check(&dependent, &header, &strict).expect_err("it fails");
    assert!(stderr.contains("  ncclOwn: fn (  ) -> c_int\n"), "{stderr}");
}

#[test]
#[ignore = "builds bindgen for each: .ci/run matrix"]
fn header_without_the_feature_or_libclang_fails_the_build() {
    let nowhere = [("LIBCLANG_PATH", "/nowhere"), ("LIBNCCL_BINDGEN", "never")];
    let without_libclang = "which cannot be compared with the bindings: Unable to find libclang";
    for (feature, environment, problem) in [
        ("dlopen", &[][..], "and the check needs the feature `bindgen` of libnccl"),
        ("bindgen", &nowhere, without_libclang),
    ] {
        let dependent = dependent(feature);
        let stderr = check(&dependent, HEADER, environment).expect_err("it fails");
        let expected = format!("LIBNCCL_CHECK_HEADER is {:?}, {problem}", dependent.path().join("nccl.h"));
        assert!(stderr.contains(&expected), "{stderr}");
    }
    check(&dependent("dlopen"), HEADER, &[("LIBNCCL_CHECK_HEADER", "")]).expect("it builds");
}
