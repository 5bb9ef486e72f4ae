//! Lists which functions this program has.

use libnccl::Nccl;

/// Prints each function of `nccl.h` with `present`, or the error that calling it would be, and calls one.
pub(crate) fn run(nccl: &Nccl) -> Result<(), String> {
    for function in nccl.functions() {
        match nccl.require(function.name) {
            Ok(()) if function.present => println!("{}\tpresent", function.name),
            Ok(()) => return Err(format!("{}: not present, but no error", function.name)),
            Err(error) => println!("{}\t{error}", function.name),
        }
    }
    nccl.unique_id().map(drop).map_err(|error| error.to_string())
}
