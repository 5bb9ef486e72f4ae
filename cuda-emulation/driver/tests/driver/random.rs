//! Random programs of streams, events and copies, whose data must equal sequential execution.
//! `LIBNCCL_TEST_CUDA_PROGRAMS=12500` in the environment runs that number of each kind.

use std::env;

use cudarc::driver::CudaContext;

use cuda_test_support::random::{Program, Result};

crate::tests! {
    random_programs_match_sequential_execution
}

/// The number of programs that each process runs, unless the variable sets another.
const PROGRAMS: u64 = 100;

fn random_programs_match_sequential_execution() {
    let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let programs = number("LIBNCCL_TEST_CUDA_PROGRAMS").unwrap_or(PROGRAMS);
    let seed = number("LIBNCCL_CPU_SEED").unwrap_or(0);
    let contexts = [0, 1].map(|device| CudaContext::new(device).expect("a device"));
    for number in seed * programs..(seed + 1) * programs {
        run(Program::new(number, &contexts)).unwrap_or_else(|error| panic!("program {number}: {error}"));
    }
}

fn run(mut program: Program<'_>) -> Result {
    program.begin(1..4, true)?;
    for _ in 0..program.rng.usize(5..40) {
        program.operation()?;
    }
    program.end()
}
