//! `LIBNCCL_CHECK_HEADER` in builds of a crate that depends on libnccl.

use std::fs;
use std::path::Path;

use crate::{cargo_check, write_dependent};

const HEADER: &str = include_str!("../../../vendor-headers/nccl.h");

/// A crate that depends on libnccl, with an own header.
struct Dependent(tempfile::TempDir);

impl Dependent {
    fn new(feature: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        write_dependent(directory.path(), root, feature);
        let dependent = Self(directory);
        dependent.write(HEADER);
        dependent
    }

    fn write(&self, header: &str) {
        fs::write(self.header(), header).expect("the header is written");
    }

    fn header(&self) -> String {
        self.0.path().join("nccl.h").to_str().expect("its name is text").into()
    }

    fn check(&self, environment: &[(&str, &str)]) -> Result<String, String> {
        let header = self.header();
        let environment = [&[("LIBNCCL_CHECK_HEADER", &*header)], environment].concat();
        cargo_check(self.0.path(), &[], &environment)
    }

    #[track_caller]
    fn builds(&self, environment: &[(&str, &str)]) -> String {
        self.check(environment).unwrap_or_else(|stderr| panic!("{stderr}"))
    }

    #[track_caller]
    fn fails(&self, environment: &[(&str, &str)]) -> String {
        self.check(environment).expect_err("it fails")
    }
}

#[track_caller]
fn with(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old}");
    text.replace(old, new)
}

#[test]
#[ignore = "builds bindgen for each: .ci/run generated"]
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
    let dependent = Dependent::new("bindgen");
    dependent.write(&header);

    let stderr = dependent.fails(&[]);
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
#[ignore = "builds bindgen for each: .ci/run generated"]
fn items_of_one_side_are_listed_and_fail_a_strict_build() {
    let dependent = Dependent::new("bindgen");
    let strict = [("LIBNCCL_CHECK_HEADER_STRICT", "1")];
    assert!(!dependent.builds(&strict).contains("LIBNCCL_CHECK_HEADER"));

    // The same path with other contents: cargo runs the check again.
    dependent.write(&with(
        HEADER,
        "typedef struct ncclComm ",
        "int ncclOwn(void);\ntypedef struct ncclComm ",
    ));
    let stderr = dependent.builds(&[("LIBNCCL_CHECK_HEADER_STRICT", "0")]);
    assert!(stderr.contains(", 1 only in the header, of 2.32.3; "), "{stderr}");
    let list = stderr
        .split_once("of 2.32.3; ")
        .and_then(|(_, rest)| rest.split_once(" lists them"))
        .map(|(list, _)| list);
    let list = fs::read_to_string(list.expect("the warning names a file")).expect("the list is there");
    assert!(list.ends_with("\nonly in the header, of 2.32.3:\n  ncclOwn: fn (  ) -> c_int\n"), "{list}");
    let stderr = dependent.fails(&strict);
    assert!(stderr.contains("  ncclOwn: fn (  ) -> c_int\n"), "{stderr}");
}

#[test]
#[ignore = "builds bindgen for each: .ci/run generated"]
fn header_without_the_feature_or_libclang_fails_the_build() {
    let nowhere = [("LIBCLANG_PATH", "/nowhere"), ("LIBNCCL_BINDGEN", "never")];
    let without_libclang = "which cannot be compared with the bindings: Unable to find libclang";
    for (feature, environment, problem) in [
        ("dlopen", &[][..], "and the check needs the feature `bindgen` of libnccl"),
        ("bindgen", &nowhere, without_libclang),
    ] {
        let dependent = Dependent::new(feature);
        let stderr = dependent.fails(environment);
        let expected = format!("LIBNCCL_CHECK_HEADER is {:?}, {problem}", dependent.header());
        assert!(stderr.contains(&expected), "{stderr}");
    }
    Dependent::new("dlopen").builds(&[("LIBNCCL_CHECK_HEADER", "")]);
}
