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

/// The tests that run in a process of their own, by name.
const TESTS: &[&[process::Test]] = &[
    blocking::TESTS,
    devices::TESTS,
    devices::LISTED,
    extension::TESTS,
    extension::REPORTED,
    faults::TESTS,
    graphs::TESTS,
    leaks::TESTS,
    memory::TESTS,
    memory::LIMITED,
    streams::TESTS,
    random::TESTS,
    races::TESTS,
    races::WITH_VARIABLES,
    virtual_memory::TESTS,
];

fn main() -> ExitCode {
    let tests = || TESTS.iter().copied().flatten();
    if let Some(name) = process::requested() {
        let Some(test) = tests().find(|test| test.name == name) else { return ExitCode::FAILURE };
        (test.run)();
        // Races are found when operations begin. Some tests leave an error.
        let _ = cudarc::driver::result::ctx::synchronize();
        return ExitCode::SUCCESS;
    }
    let exports: [(_, fn()); 3] = [
        (
            "every_function_that_cudarc_declares_is_exported",
            exports::every_function_that_cudarc_declares_is_exported,
        ),
        ("exports_are_those_of_the_table", exports::exports_are_those_of_the_table),
        (
            "every_function_is_found_by_name_since_its_version",
            exports::every_function_is_found_by_name_since_its_version,
        ),
    ];
    let exports = exports.map(|(name, run)| {
        Trial::test(name, move || {
            run();
            Ok(())
        })
    });
    let trials = tests().map(|test| Trial::test(test.name, || process::run(test).map_err(Into::into)));
    let python = Trial::test("race_in_python_has_the_lines_of_python", || python::run().map_err(Into::into));
    libtest_mimic::run(&Arguments::from_args(), trials.chain(exports).chain([python]).collect()).exit_code()
}
