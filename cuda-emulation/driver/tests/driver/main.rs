//! The shared object as cudarc uses it: each test is a process that finds it as `libcuda.so.1`.

mod blocking;
mod devices;
mod exports;
mod extension;
mod faults;
mod graphs;
mod leaks;
mod memory;
mod process;
mod python;
mod races;
mod random;
mod streams;
mod virtual_memory;
mod work;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// The tests that run in a separate process, by name.
const TESTS: [&[process::Test]; 11] = [
    blocking::TESTS,
    devices::TESTS,
    extension::TESTS,
    faults::TESTS,
    graphs::TESTS,
    leaks::TESTS,
    memory::TESTS,
    streams::TESTS,
    random::TESTS,
    races::TESTS,
    virtual_memory::TESTS,
];

fn main() -> ExitCode {
    let tests = || TESTS.into_iter().flatten();
    if let Some(name) = process::requested() {
        let Some(test) = tests().find(|test| test.name == name) else { return ExitCode::FAILURE };
        (test.run)();
        // Races are found when operations begin. Some tests leave an error.
        let _ = cudarc::driver::result::ctx::synchronize();
        return ExitCode::SUCCESS;
    }
    let exports = exports::TESTS.iter().map(|&(name, run)| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    });
    let trials = tests().map(|test| Trial::test(test.name, || process::run(test).map_err(Into::into)));
    let python = Trial::test("race_in_python_has_the_lines_of_python", || python::run().map_err(Into::into));
    libtest_mimic::run(&Arguments::from_args(), trials.chain(exports).chain([python]).collect()).exit_code()
}
