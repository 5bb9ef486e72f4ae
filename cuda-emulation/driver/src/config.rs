//! Settings from the environment: memory, visible devices, and reports.
//!
//! Visible devices are numbered from 0 in the order of `CUDA_VISIBLE_DEVICES`. UUIDs and PCI bus ids belong to the physical
//! devices, so that NVML, which ignores the variable, finds the same device by either.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::LazyLock;

use cudarc::driver::sys::CUresult::*;

use rustix::system::sysinfo;

use crate::error::{Result, print};
use cuda_common::device_name;
use cuda_common::finding::{self, FAILURES, Failures, IGNORE, Ignored, REPORT, STRICT};
use cuda_common::stack::STACKS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Races {
    Off,
    Report,
    /// A report, and a sticky error of the context.
    Error,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    pub(crate) devices: usize,
    pub(crate) device_memory: usize,
    pub(crate) races: Races,
    pub(crate) seed: Option<u64>,
    pub(crate) reports_faults: bool,
    /// Set if a failed NCCL operation makes the calls in its context fail.
    pub(crate) failures_stay: bool,
    pub(crate) ignored: Ignored,
    pub(crate) lists_leaks: bool,
    pub(crate) notes_stacks: bool,
    /// Set if `CUDA_LAUNCH_BLOCKING=1` is set in the environment.
    pub(crate) blocks_launches: bool,
}

/// The number of devices of the CUDA emulation, up to 64. Default: 8.
const DEVICES: &str = "LIBNCCL_CPU_DEVICES";
/// The bytes of memory of each device of the CUDA emulation, in each process: `512M`, `4G`. Default: all devices together
/// have half of the host's memory, or half of the limit of its control groups.
const DEVICE_MEMORY: &str = "LIBNCCL_CPU_DEVICE_MEMORY";
/// The consequence of missing synchronization: `off`, `report` or `error`. Default: `report`.
const RACES: &str = "LIBNCCL_CPU_RACES";
/// The seed from which the order of operations on different streams is drawn. Default: they run concurrently.
const SEED: &str = "LIBNCCL_CPU_SEED";
/// `report` to report accesses of the host to device memory. Default: `off`, and only the signal.
const FAULTS: &str = "LIBNCCL_CPU_FAULTS";

impl Config {
    const MAX_DEVICES: usize = 64;

    pub(crate) fn from_env() -> Result<Self> {
        let devices = variable(DEVICES, "a number from 0 to 64", |text| {
            usize::from_str(text).ok().filter(|&devices| devices <= Self::MAX_DEVICES)
        })?;
        let devices = devices.unwrap_or(8);
        let device_memory = variable(DEVICE_MEMORY, "a number of bytes above 0, such as 512M or 4G", bytes)?;
        let choice = |name, expected, values: &[&str]| {
            variable(name, expected, |text| values.iter().position(|value| *value == text))
        };
        let races = choice(RACES, "off, report or error", &["off", "report", "error"])?;
        let seed = variable(SEED, "a number below 2^64", |text| u64::from_str(text).ok())?;
        let faults = choice(FAULTS, "off or report", &["off", "report"])?;
        let failures = variable(FAILURES, Failures::EXPECTED, Failures::parse)?;
        variable(REPORT, "the path of a file that can be written", |name| finding::open(name).ok())?;
        let is_on = |name| choice(name, "0 or 1", &["0", "1"]).map(|value| value == Some(1));
        let (strict, stacks) = (is_on(STRICT)?, is_on(STACKS)?);
        let ignored = variable(IGNORE, &Ignored::expected(), Ignored::parse)?;
        Ok(Self {
            devices,
            // The other half is the program's own.
            device_memory: device_memory.unwrap_or_else(|| host_memory() / 2 / devices.max(1)),
            races: [Races::Off, Races::Report, Races::Error][races.unwrap_or(1)],
            seed,
            reports_faults: faults == Some(1),
            failures_stay: failures.is_none_or(|failures| failures == Failures::Error),
            ignored: ignored.unwrap_or_default(),
            lists_leaks: strict,
            notes_stacks: stacks,
            blocks_launches: value("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value == "1"),
        })
    }
}

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
            print(&format!("libnccl: invalid {name} {value:?}; it must be {expected}\n"));
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }
}

/// Returns the memory available to this process: the host's, or the limit of its control group.
pub(crate) fn host_memory() -> usize {
    static BYTES: LazyLock<usize> = LazyLock::new(|| {
        let info = sysinfo();
        let (units, unit) = (info.totalram as u64, u64::from(info.mem_unit));
        let total = usize::try_from(units.saturating_mul(unit)).unwrap_or(usize::MAX);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        groups.lines().filter_map(limit_of_group).fold(total, usize::min)
    });
    *BYTES
}

/// Returns the lowest limit of a control group and its ancestors. `line` is a line of `/proc/self/cgroup`.
fn limit_of_group(line: &str) -> Option<usize> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (root, file) = match fields.next()? {
        "" => ("/sys/fs/cgroup", "memory.max"),
        controllers if controllers.split(',').any(|one| one == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group = Path::new(root).join(fields.next()?.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    // A group without a limit has a word instead of the number, or a number that exceeds every host's memory.
    groups.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
}

/// Returns the physical devices that the program sees, in the program's order.
pub(crate) fn visible_devices(physical: usize) -> Vec<usize> {
    match value("CUDA_VISIBLE_DEVICES").map(|list| list.to_string_lossy().into_owned()) {
        Some(list) => parse(&list, physical),
        None => (0..physical).collect(),
    }
}

/// Returns the UUID of a physical device. The first four bytes are unique, so that eight digits suffice.
pub(crate) fn uuid(physical: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    let text = format!("{physical:04} libnccl-cpu");
    bytes.iter_mut().zip(text.bytes()).for_each(|(byte, letter)| *byte = letter);
    bytes
}

/// Parses a list of indices, or of UUIDs that may be abbreviated.
///
/// As in CUDA, the first entry that is no device ends the list, and a device that is listed twice before that makes the list
/// empty (<https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html>, and what
/// <https://github.com/pytorch/pytorch/pull/92315> measured). The first entry decides whether the list has indices or UUIDs.
fn parse(list: &str, physical: usize) -> Vec<usize> {
    let has_uuids = list.trim_start().starts_with("GPU-");
    let mut found = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let device = if has_uuids { by_uuid(entry, physical) } else { by_index(entry, physical) };
        match device {
            Some(device) if found.contains(&device) => return Vec::new(),
            Some(device) => found.push(device),
            None => break,
        }
    }
    found
}

/// Finds a device by index, as `strtoul` parses it: what follows the digits is ignored.
fn by_index(entry: &str, physical: usize) -> Option<usize> {
    let number = entry.strip_prefix('+').unwrap_or(entry);
    let digits = number.bytes().take_while(u8::is_ascii_digit).count();
    number[..digits].parse().ok().filter(|&index: &usize| index < physical)
}

fn by_uuid(entry: &str, physical: usize) -> Option<usize> {
    if !entry.starts_with("GPU-") {
        return None;
    }
    let mut named = (0..physical).filter(|&device| device_name(uuid(device)).starts_with(entry));
    named.next().filter(|_| named.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn name(physical: usize) -> String {
        device_name(uuid(physical))
    }

    #[test]
    fn list_of_indices_ends_at_the_first_that_is_no_device() {
        for (list, expected) in [
            ("2,1", &[2, 1][..]),
            (" 3 , 0", &[3, 0]),
            ("0,2,-1,1", &[0, 2]),
            ("0,1,9,2", &[0, 1]),
            ("1,", &[1]),
            ("1,,2", &[1]),
            ("+1,2gpu", &[1, 2]),
            ("1,99999999999999999999999", &[1]),
            ("1,GPU-30303030", &[1]),
            ("", &[]),
            (" ", &[]),
            ("-1", &[]),
            ("4", &[]),
            ("none", &[]),
            ("MIG-30303030-2d6c-6962-6e63-636c2d637075", &[]),
        ] {
            assert_eq!(parse(list, 4), expected, "{list:?}");
        }
    }

    #[test]
    fn device_listed_twice_hides_all_unless_the_list_has_ended() {
        assert_eq!(parse("0,1,0", 4), NONE);
        assert_eq!(parse("0,01", 4), [0, 1]);
        assert_eq!(parse("1,01", 4), NONE);
        assert_eq!(parse("0,-1,0", 4), [0]);
        assert_eq!(parse(&format!("{},{}", name(1), &name(1)[..12]), 4), NONE);
    }

    #[test]
    fn uuid_may_be_abbreviated_as_long_as_it_is_of_one_device() {
        let short = |device: usize| name(device)[..12].to_owned();
        assert_eq!(parse(&name(3), 64), [3]);
        assert_eq!(parse(&format!("{},{}", short(12), short(2)), 64), [12, 2]);
        assert_eq!(parse(&format!("{}, {},0", short(1), name(0)), 64), [1, 0]);
        assert_eq!(parse(&name(1)[..11], 8), NONE, "all devices have these digits");
        assert_eq!(parse("GPU-", 1), [0]);
        assert_eq!(parse(&(name(0) + "0"), 8), NONE);
    }
}
