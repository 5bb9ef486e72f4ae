//! `nccl`: says what NCCL a system has, and measures it; without a GPU, on the CPU implementation.
#![deny(unsafe_code)]

mod args;
mod bench;
mod doctor;
mod gpu;
mod library;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        // Not `eprintln`, which panics where there is no stderr; and in one write, as ranks share it.
        let _ = std::io::stderr().write_all(format!("error: {error:#}\n").as_bytes());
        ExitCode::FAILURE
    })
}
