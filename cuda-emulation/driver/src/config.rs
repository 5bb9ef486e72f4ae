//! Settings, from the environment.

use std::env;
use std::ffi::OsString;
use std::str::FromStr;

use cuda_common::finding::{self, FAILURES, Failures, IGNORE, Ignored, REPORT, STRICT};
use cuda_common::stack::STACKS;
use cudarc::driver::sys::CUresult;

use crate::device::host_memory;
use crate::error::Result;
use crate::message;

/// The consequence of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Races {
    /// Nothing: races are not looked for.
    Off,
    /// A report on stderr.
    Report,
    /// A report, and an error that stays with the context.
    Error,
}

/// The settings of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    /// The number of devices, visible or not.
    pub(crate) devices: usize,
    /// The number of bytes of each device.
    pub(crate) device_memory: usize,
    /// The consequence of a race.
    pub(crate) races: Races,
    /// The seed that the order of operations is drawn from, if it is drawn.
    pub(crate) seed: Option<u64>,
    /// True if device memory that the host touches is reported.
    pub(crate) reports_faults: bool,
    /// True if an operation of NCCL that fails makes the calls of its context fail.
    pub(crate) failures_stay: bool,
    /// The findings that are none.
    pub(crate) ignored: Ignored,
    /// True if what is left at the end is reported.
    pub(crate) lists_leaks: bool,
    /// True if the stacks of calls are noted.
    pub(crate) notes_stacks: bool,
    /// True if copies, memsets, launches of graphs and NCCL's operations return when they are complete.
    pub(crate) blocks_launches: bool,
}

/// The number of devices of the stand-in for CUDA, up to 64. Default: 8.
const DEVICES: &str = "LIBNCCL_CPU_DEVICES";
/// The bytes of memory of each device of the stand-in for CUDA, in each process: `512M`, `4G`. Default: all devices
/// together have half of the host's memory, or of what its control groups allow.
const DEVICE_MEMORY: &str = "LIBNCCL_CPU_DEVICE_MEMORY";
/// The consequence of a missing synchronisation: `off`, `report` or `error`. Default: `report`.
const RACES: &str = "LIBNCCL_CPU_RACES";
/// The seed from which the order of operations on different streams is drawn. Default: they run at the same time.
const SEED: &str = "LIBNCCL_CPU_SEED";
/// `report` for a text about device memory that the host touches. Default: `off`, and the signal alone.
const FAULTS: &str = "LIBNCCL_CPU_FAULTS";

impl Config {
    const MAX_DEVICES: usize = 64;

    /// Reads the environment; says on stderr which value is wrong.
    pub(crate) fn from_env() -> Result<Self> {
        let devices = variable(DEVICES, "a number from 0 to 64", |text| {
            usize::from_str(text).ok().filter(|&devices| devices <= Self::MAX_DEVICES)
        })?;
        let devices = devices.unwrap_or(8);
        let device_memory = variable(DEVICE_MEMORY, "a number of bytes above 0, such as 512M or 4G", bytes)?;
        let races = variable(RACES, "off, report or error", |text| match text {
            "off" => Some(Races::Off),
            "report" => Some(Races::Report),
            "error" => Some(Races::Error),
            _ => None,
        })?;
        let seed = variable(SEED, "a number below 2^64", |text| u64::from_str(text).ok())?;
        let faults = variable(FAULTS, "off or report", |text| match text {
            "off" => Some(false),
            "report" => Some(true),
            _ => None,
        })?;
        let failures = variable(FAILURES, Failures::EXPECTED, Failures::parse)?;
        variable(REPORT, "the path of a file that can be written", |name| finding::open(name).ok())?;
        let is_on =
            |name| variable(name, "0 or 1", |text| ["0", "1"].iter().position(|value| *value == text));
        let [strict, stacks] = [is_on(STRICT)?, is_on(STACKS)?].map(|value| value == Some(1));
        let ignored = variable(IGNORE, &Ignored::expected(), Ignored::parse)?;
        Ok(Self {
            devices,
            // The other half is the program's own.
            device_memory: device_memory.unwrap_or_else(|| host_memory() / 2 / devices.max(1)),
            races: races.unwrap_or(Races::Report),
            seed,
            reports_faults: faults.unwrap_or(false),
            failures_stay: failures.is_none_or(|failures| failures == Failures::Error),
            ignored: ignored.unwrap_or_default(),
            lists_leaks: strict,
            notes_stacks: stacks,
            blocks_launches: value("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value == "1"),
        })
    }
}

/// Reads a number of bytes, with a unit if there is one.
fn bytes(text: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    let number = text.trim_end_matches('b').trim_end_matches(['k', 'm', 'g', 't']);
    let unit: usize = match &text[number.len()..] {
        "" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1 << 30,
        "t" | "tb" => 1 << 40,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(unit).filter(|&bytes| bytes > 0)
}

/// Returns the value of `CUDA_VISIBLE_DEVICES`, which may be empty.
pub(crate) fn visible_devices() -> Option<String> {
    value("CUDA_VISIBLE_DEVICES").map(|list| list.to_string_lossy().into_owned())
}

fn value(name: &str) -> Option<OsString> {
    // In a program with more rights than its user, the environment is that user's.
    // SAFETY: the function reads a value of the process, and accepts any number.
    #[allow(unsafe_code)]
    let is_own = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    #[allow(clippy::disallowed_methods)] // Here alone.
    env::var_os(name).filter(|_| is_own)
}

fn variable<T>(name: &str, expected: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>> {
    let Some(value) = value(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    match value.to_str().and_then(parse) {
        Some(parsed) => Ok(Some(parsed)),
        None => {
            message::write(&format!("libnccl: invalid {name} {value:?}; it must be {expected}\n"));
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        }
    }
}
