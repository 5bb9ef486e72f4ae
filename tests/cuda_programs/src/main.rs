//! Programs for GPUs with NCCL, as users of the crate cudarc write them: `PROGRAM ARGUMENT...`. Each prints `ok` when it succeeds.

mod asynchronous;
mod collectives;
mod error;
mod failures;
mod graphs;
mod races;
mod random;
mod rank;
mod split;

use cudarc::driver::CudaContext;

use error::Result;

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(|argument| &**argument).collect();
    match arguments[..] {
        ["collectives", devices] => collectives::run(count(devices)?)?,
        ["graphs", devices] => graphs::run(count(devices)?)?,
        ["split", devices] => split::run(count(devices)?),
        ["asynchronous", name] => asynchronous::run(name),
        ["failures", name] => failures::run(name),
        ["races", name, count] => races::run(name, count.parse()?),
        ["random", first, count] => random::run(first.parse()?, count.parse()?)?,
        _ => return Err(format!("there is no program {arguments:?}").into()),
    }
    println!("ok");
    Ok(())
}

/// Reads a number of GPUs, which must be there.
fn count(devices: &str) -> Result<usize> {
    let (devices, found) = (devices.parse()?, CudaContext::device_count()? as usize);
    if devices <= found { Ok(devices) } else { Err(format!("{found} GPUs, fewer than {devices}").into()) }
}
