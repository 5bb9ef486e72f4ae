//! The program `nccl`.
#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    libnccl_cli::main()
}
