use super::Parameters;
use crate::bench::arguments::MeasureArguments;

fn parameters(arguments: &str, gpus: usize) -> Parameters {
    Parameters::new(&MeasureArguments::parse(arguments), gpus, (1, gpus.max(2))).unwrap().remove(0)
}

fn sizes(arguments: &str) -> Vec<u64> {
    parameters(arguments, 0).sizes().collect()
}

#[test]
fn sizes_grow_by_factor_or_by_bytes() {
    assert_eq!(sizes("all_reduce -b 8 -e 100 -f 3"), [8, 24, 72]);
    assert_eq!(sizes("all_reduce -b 8 -e 24 -i 8"), [8, 16, 24]);
    assert_eq!(sizes("all_reduce -b 1K -e 1K"), [1024]);
    assert_eq!(sizes("all_reduce -b 0 -e 0"), [0]);
    assert_eq!(sizes("all_reduce -b 0 -e 64 -f 4"), [0, 8, 32]);
    assert_eq!(sizes("all_reduce -b 0 -e 64 -i 32"), [0, 32, 64]);
    let most = u64::MAX.to_string();
    assert_eq!(sizes(&format!("all_reduce -b {most} -e {most}")), [u64::MAX]);
}

#[test]
fn warmup_sizes_double() {
    let warmup = |arguments| parameters(arguments, 0).warmup_sizes().collect::<Vec<_>>();
    assert_eq!(warmup("all_reduce -b 8 -e 100 -i 1"), [8, 16, 32, 64]);
    assert_eq!(warmup("all_reduce -b 0 -e 16 -i 1"), [0, 8, 16]);
    // Buffers are only as large as the last size.
    assert_eq!(warmup("all_reduce -b 8 -e 64 -f 5"), [8, 16, 32]);
    assert_eq!(warmup("all_reduce -b 8 -e 31 -i 8"), [8, 16]);
}

#[test]
fn defaults_depend_on_the_number_of_gpus() {
    let cpu = parameters("broadcast", 0);
    let gpu = parameters("broadcast", 8);
    assert_eq!((cpu.ranks, cpu.max_bytes, cpu.root()), (2, 4 << 20, Some(0)));
    assert_eq!((gpu.ranks, gpu.max_bytes, gpu.op()), (8, 128 << 20, None));
    assert_eq!(sizes("all_reduce -b 1G"), [1 << 30]);
}
