//! The CUDA devices of a communicator's ranks: each rank has one of its own.

use libnccl::internal::environment::variable;

use crate::comm::communicator::Communicator;
use crate::cuda::driver::Driver;
use crate::diag::error::{Error, Result};

/// Returns `true` if several ranks may have one device, `NCCL_MULTI_RANK_GPU_ENABLE=1`.
pub(crate) fn may_repeat() -> bool {
    variable("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|value| value == "1")
}

/// Bytes of a published device.
pub(crate) const LENGTH: usize = 16;

/// The device of a rank, as the ranks compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Device {
    /// Its number in the rank's process.
    number: i32,
    /// The number of its PCI bus, which is the same in all processes.
    bus: i32,
    /// The buses of the devices that the rank's process sees, a bit each.
    visible: u64,
}

impl Device {
    fn find(driver: &Driver, number: i32) -> Result<Self> {
        let mut visible = 0;
        for device in 0..driver.devices()? {
            visible |= 1_u64.rotate_left(driver.bus(device)?.unsigned_abs());
        }
        Ok(Self { number, bus: driver.bus(number)?, visible })
    }

    fn to_bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&self.number.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.bus.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.visible.to_ne_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            number: i32::from_ne_bytes(*bytes.first_chunk()?),
            bus: i32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?),
            visible: u64::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
        })
    }
}

/// Returns the device of a rank for the other ranks; zeros without CUDA.
pub(crate) fn publish(communicator: &Communicator) -> Result<[u8; LENGTH]> {
    match communicator.known_driver() {
        Some(driver) => Ok(Device::find(driver, communicator.device())?.to_bytes()),
        None => Ok([0; LENGTH]),
    }
}

/// Checks that no two ranks have the same of these devices, which the ranks have [published](publish).
pub(crate) fn check(all: &[Vec<u8>]) -> Result {
    if may_repeat() {
        return Ok(());
    }
    let all: Option<Vec<Device>> = all.iter().map(|bytes| Device::of_bytes(bytes)).collect();
    let all = all.ok_or_else(|| Error::internal("a rank sent no device"))?;
    repeated(&all).map_or(Ok(()), |text| Err(Error::usage(text)))
}

/// Returns the start of an error if there are fewer devices than ranks, and nothing otherwise.
pub(crate) fn shortage(ranks: usize, devices: usize) -> String {
    match devices {
        _ if devices >= ranks => String::new(),
        1 => format!("{ranks} ranks, 1 device: "),
        _ => format!("{ranks} ranks, {devices} devices: "),
    }
}

/// Describes the first two ranks that have the same device.
fn repeated(devices: &[Device]) -> Option<String> {
    let (one, other) = (0..devices.len()).find_map(|other| {
        let one = devices[..other].iter().position(|device| device.bus == devices[other].bus)?;
        Some((one, other))
    })?;
    let visible = devices.iter().fold(0, |all, device| all | device.visible).count_ones();
    let ranks = match (devices[one].number, devices[other].number) {
        (same, also) if same == also => format!("rank {one} and rank {other} are both on device {same}"),
        (first, second) => {
            format!("rank {one} on device {first} and rank {other} on device {second} are both on the GPU")
        }
    };
    Some(format!(
        "{}{ranks} with PCI bus id 0000:{:02X}:00.0, which NCCL_MULTI_RANK_GPU_ENABLE=1 allows",
        shortage(devices.len(), visible as usize),
        devices[one].bus,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(number: i32, bus: i32, visible: &[i32]) -> Device {
        let visible = visible.iter().fold(0, |all, bus| all | 1_u64.rotate_left(bus.unsigned_abs()));
        Device { number, bus, visible }
    }

    #[test]
    fn devices_are_compared_by_their_bus() {
        let [first, second] = [3, 4].map(|bus| device(0, bus, &[bus]));
        assert_eq!(repeated(&[first, second]), None);
        let both = |number, bus| device(number, bus, &[3, 4]);
        assert_eq!(repeated(&[both(0, 3), both(1, 4)]), None);
        assert_eq!(
            repeated(&[both(0, 3), device(0, 4, &[4]), both(1, 4)]).unwrap(),
            "3 ranks, 2 devices: rank 1 on device 0 and rank 2 on device 1 are both on the GPU with PCI bus id 0000:04:00.0, which \
             NCCL_MULTI_RANK_GPU_ENABLE=1 allows"
        );
    }

    #[test]
    fn too_few_devices_are_counted_over_all_ranks() {
        let text = |devices: &[Device]| repeated(devices).unwrap();
        let one = device(0, 1, &[1]);
        assert!(
            text(&[one, one])
                .starts_with("2 ranks, 1 device: rank 0 and rank 1 are both on device 0 with PCI")
        );
        let all = |number| device(number, number + 1, &[1, 2, 64]);
        assert!(text(&[all(0), all(1), all(0)]).starts_with("rank 0 and rank 2 are both on device 0 with"));
        assert!(text(&[all(0), all(1), all(0), one]).starts_with("4 ranks, 3 devices: rank 0 and rank 2"));
    }

    #[test]
    fn device_survives_the_exchange() {
        let device = device(-1, 64, &[1, 63, 64]);
        assert_eq!(Device::of_bytes(&device.to_bytes()), Some(device));
        assert_eq!(Device::of_bytes(&[0; 15]), None);
    }
}
