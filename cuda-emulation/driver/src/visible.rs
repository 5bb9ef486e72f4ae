//! The devices that a program sees, as `CUDA_VISIBLE_DEVICES` lists them.
//!
//! The driver numbers its devices from 0 in the order of the list. UUID and PCI bus id are the physical device's, so that NVML, which
//! ignores the variable, finds the same device by either.

use std::fmt::Write;

use crate::config;

/// Returns the physical devices, out of `physical`, that the program sees, in its order.
pub(crate) fn devices(physical: usize) -> Vec<usize> {
    match config::visible_devices() {
        Some(list) => parse(&list, physical),
        None => (0..physical).collect(),
    }
}

/// Returns the UUID of a physical device. The first four bytes differ between devices, so that eight digits of a UUID name one.
pub(crate) fn uuid(physical: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    let text = format!("{physical:04} libnccl-cpu");
    bytes.iter_mut().zip(text.bytes()).for_each(|(byte, letter)| *byte = letter);
    bytes
}

/// Returns the name that `nvidia-smi -L` prints for a physical device.
fn name(physical: usize) -> String {
    let mut name = String::from("GPU");
    for (index, byte) in uuid(physical).iter().enumerate() {
        let dash = if [0, 4, 6, 8, 10].contains(&index) { "-" } else { "" };
        let _ = write!(name, "{dash}{byte:02x}");
    }
    name
}

/// Parses a list of indices, or of UUIDs that may be abbreviated.
///
/// The first entry that is no device ends the list, and a device that is listed twice before that makes the list empty, as in CUDA
/// (<https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html>, and what
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

/// Finds the device with an index, as `strtoul` reads it: what follows the digits is ignored.
fn by_index(entry: &str, physical: usize) -> Option<usize> {
    let number = entry.strip_prefix('+').unwrap_or(entry);
    let digits = number.bytes().take_while(u8::is_ascii_digit).count();
    number[..digits].parse().ok().filter(|&index: &usize| index < physical)
}

/// Finds the only device whose UUID begins so.
fn by_uuid(entry: &str, physical: usize) -> Option<usize> {
    if !entry.starts_with("GPU-") {
        return None;
    }
    let mut named = (0..physical).filter(|&device| name(device).starts_with(entry));
    named.next().filter(|_| named.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

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
