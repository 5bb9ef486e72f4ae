use clap::{Args, Command, FromArgMatches};

use super::Parameters;
use crate::bench::arguments::MeasureArguments;

fn parameters(arguments: &str, gpus: usize) -> Parameters {
    let command = MeasureArguments::augment_args(Command::new("bench").no_binary_name(true));
    let matches = command.get_matches_from(arguments.split_whitespace());
    let arguments = MeasureArguments::from_arg_matches(&matches).unwrap();
    Parameters::new(&arguments, gpus, (1, gpus.max(2))).unwrap().remove(0)
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
    // A smallest size above the default limit is the only one, and the largest possible size is the last.
    for (size, bytes) in [("1G", 1 << 30), ("18446744073709551615", u64::MAX)] {
        let sizes = parameters(&format!("all_reduce -b {size} -e {size}"), 0).sizes().collect::<Vec<_>>();
        assert_eq!(sizes, [bytes]);
    }
}
