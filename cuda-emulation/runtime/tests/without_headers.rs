//! C programs that need none of NVIDIA's headers, among them the first example of the README.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// Returns a directory with the driver and the runtime library, which cargo builds with this test.
fn libraries() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let own = std::env::current_exe().expect("the path of this test");
    for (built, name) in [("libcuda_cpu.so", "libcuda.so.1"), ("libcudart_cpu.so", "libcudart.so.12")] {
        let built = own.with_file_name(built);
        assert!(built.exists(), "{} is not built", built.display());
        symlink(built, directory.path().join(name)).expect("a link");
    }
    directory
}

/// Compiles a program, or a library with the right options, against the header of the examples.
fn compile(directory: &Path, source: &Path, name: &str, options: &[&str]) {
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-I"]).arg(format!("{SOURCES}/include"));
    cc.args(options).arg(source).arg("-o").arg(directory.join(name));
    cc.arg("-L").arg(directory).args(["-l:libcudart.so.12", "-ldl", "-Wl,--allow-shlib-undefined"]);
    let compiled = cc.output().expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

fn run(directory: &Path, program: &str, argument: Option<&str>) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(directory.join(program)).args(argument).current_dir(directory);
    command.env("LD_LIBRARY_PATH", directory).env_remove("LIBNCCL_CPU_RACES");
    command.output().expect("the program runs")
}

#[test]
fn program_with_streams_events_and_copies_runs_and_its_race_is_reported() {
    let directory = libraries();
    let directory = directory.path();
    compile(directory, &Path::new(SOURCES).join("streams.c"), "streams", &[]);
    let right = run(directory, "streams", None);
    assert_eq!(String::from_utf8_lossy(&right.stdout), "the last byte is 7\n");
    assert_eq!(String::from_utf8_lossy(&right.stderr), "");
    let wrong = run(directory, "streams", Some("without the wait"));
    let report = String::from_utf8_lossy(&wrong.stderr);
    assert!(report.contains("race in allocation") && report.contains("[race]"), "{report}");
    for function in ["cuMemsetD8Async", "cuMemcpyDtoHAsync_v2"] {
        assert!(report.contains(function), "no {function} in {report}");
    }
}

// A look-up of a function takes the dynamic linker's lock, which `dlopen` holds.
#[test]
fn thread_of_a_librarys_constructor_calls_functions_for_the_first_time() {
    const LIBRARY: &str = "
#include <cuda_runtime.h>
#include <pthread.h>
static void *call(void *none) {
    if (cudaStreamSynchronize(0) != cudaSuccess) *(volatile int *)0 = 0;
    return none;
}
__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    pthread_create(&thread, 0, call, 0);
    pthread_join(thread, 0);
}
";
    const PROGRAM: &str = "
#include <cuda_runtime.h>
#include <dlfcn.h>
int main(void) {
    cudaFree(0);
    return dlopen(\"./library.so\", RTLD_NOW) == 0;
}
";
    let directory = libraries();
    let directory = directory.path();
    for (name, text, options) in
        [("library.so", LIBRARY, &["-shared", "-fPIC"][..]), ("program", PROGRAM, &[])]
    {
        let source = directory.join(name).with_extension("c");
        fs::write(&source, text).expect("a source");
        compile(directory, &source, name, options);
    }
    let output = run(directory, "program", None);
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}
