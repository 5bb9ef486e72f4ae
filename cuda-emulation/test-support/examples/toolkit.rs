//! Prints the directories of NVIDIA's packages of a CUDA version, which are downloaded if needed: `toolkit 12`.

use cuda_test_support::toolkit::Release;

fn main() -> Result<(), String> {
    let release = match std::env::args().nth(1).as_deref() {
        Some("12") => Release::Cuda12,
        Some("13") => Release::Cuda13,
        other => return Err(format!("{other:?} is no supported version of CUDA; expected 12 or 13")),
    };
    release.obtain()?.directories.iter().for_each(|directory| println!("{}", directory.display()));
    Ok(())
}
