//! The C code of the guide, compiled against this project's `nccl.h`.

use std::path::Path;
use std::process::Command;

const GUIDE: &str = include_str!("../../../docs/migration.md");

#[test]
fn c_code_of_the_guide_compiles() {
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vendor-headers");
    let directory = tempfile::tempdir().unwrap();
    let blocks = GUIDE.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut number = 0;
    for (index, block) in blocks.enumerate() {
        let file = directory.path().join(format!("block{index}.c"));
        std::fs::write(&file, block).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        let output =
            compiler.arg(&headers).arg("-I").arg(headers.join("stubs/cuda")).arg(&file).output().unwrap();
        assert!(output.status.success(), "{}\n{block}", String::from_utf8_lossy(&output.stderr));
        number += 1;
    }
    assert_eq!(number, 2, "blocks of C in the guide");
}
