//! The bindings of both ways to reach NCCL declare the functions of its header.

/// Compares the header with bindgen's two forms of its functions.
// Regression: ztensor compares codes in the width of a register.
#[test]
fn extern_block_and_dlopen_struct_declare_the_same_functions() {
    let snapshot = |file: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys/generated").join(file);
        std::fs::read_to_string(path).unwrap()
    };
    let linked = snapshot("linked.rs");
    let dynamic = snapshot("dynamic.rs");
    let linked: Vec<&str> =
        linked.split("pub fn ").skip(1).filter_map(|rest| rest.split('(').next()).collect();
    let dynamic: Vec<&str> =
        dynamic.split("pub nccl").skip(1).filter_map(|rest| rest.split(':').next()).collect();
    let dynamic: Vec<String> = dynamic.iter().map(|name| format!("nccl{name}")).collect();
    assert_eq!(linked, declared_functions(include_str!("../../vendor-headers/nccl.h")));
    assert_eq!(linked, libnccl::sys::Functions::NAMES);
    // A loaded library has the functions of both headers.
    let device = declared_functions(include_str!("../../vendor-headers/nccl_device_host.h"));
    assert_eq!(dynamic, [linked, device].concat());
}

#[test]
fn device_bindings_declare_the_functions_of_the_header() {
    let bindings = include_str!(concat!(env!("OUT_DIR"), "/device_functions.rs"));
    let bound: Vec<&str> = bindings.lines().filter_map(|line| line.trim().strip_prefix("fn ")).collect();
    let bound: Vec<&str> = bound.iter().filter_map(|rest| rest.split('(').next()).collect();
    assert_eq!(bound, declared_functions(include_str!("../../vendor-headers/nccl_device_host.h")));
}

/// Returns the functions that a C header declares, without the `pnccl` forms of profilers.
fn declared_functions(header: &str) -> Vec<&str> {
    let declarations = header.lines().filter(|line| line.starts_with(|first: char| first.is_alphabetic()));
    let names = declarations.filter_map(|line| line.split('(').next()?.split([' ', '*']).next_back());
    let names: Vec<&str> = names.filter(|name| name.starts_with("nccl") && !name.ends_with(';')).collect();
    assert!(!names.is_empty());
    names
}
