//! Checks across the ranks of a new communicator: all ranks must pass the same arguments and use different CUDA devices. NCCL compares only
//! the devices.
//!
//! Each rank publishes its device and a digest of its arguments. The ranks exchange the arguments themselves only if the digests differ.

use std::fmt::Write as _;

use cuda_common::finding::Finding;
use libnccl::internal::environment::variable;

use crate::bootstrap::unique_id::fnv1a;
use crate::coll::call::{CallHeader, ControlCall};
use crate::coll::operation::control_allgather;
use crate::coll::wait_report::WaitReport;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::cuda::Driver;
use crate::diag::error::{Error, Result};
use crate::diag::report;
use crate::diag::settings::STRICT;
use crate::shm::call_context::{CallContext, PeerAccess};
use crate::shm::liveness::AbortReason;
use crate::shm::shared_state::SharedState;
use crate::sync::executor;

/// Number of bytes of the exchanged arguments, more than they ever need.
const LENGTH: usize = 4096;

/// Number of characters of a name that are compared.
const NAME: usize = 256;

/// Checks, together with the other ranks of a new communicator, that no two ranks have the same device and that all ranks passed the same
/// arguments and options. All ranks have just joined. The first rank whose arguments differ reports a finding.
///
/// # Errors
/// Two ranks have the same device. In strict mode: the arguments differ.
pub(crate) fn check(
    communicator: &Communicator,
    joined: &RankInfo,
    function: &str,
    arguments: &[(&str, String)],
) -> Result {
    let RankInfo { state, rank, .. } = joined;
    if state.ranks() == 1 {
        return Ok(());
    }
    let exchange =
        |own: &[u8]| exchange(state, *rank, (ControlCall::Arguments, 0), own, || communicator.is_cancelled());
    let arguments = Arguments::new(communicator, function, arguments).to_text();
    let digest = fnv1a(&[arguments.as_bytes()]).to_ne_bytes();
    let device = match communicator.known_driver() {
        Some(driver) => Device::find(driver, communicator.device)?.to_bytes(),
        None => vec![0; DEVICE_LENGTH],
    };
    let own = [&device[..], &digest].concat();
    let all = exchange(&own)?;
    if communicator.known_driver().is_some() {
        check_devices(&all)?;
    }
    if all.iter().all(|other| other[DEVICE_LENGTH..] == all[0][DEVICE_LENGTH..]) {
        return Ok(());
    }
    let mut own = arguments.into_bytes();
    own.resize(LENGTH, 0);
    let all = exchange(&own)?;
    let all: Vec<_> = all.iter().map(|text| Arguments::parse(&String::from_utf8_lossy(text))).collect();
    let Some((other, text)) = difference(&all) else { return Ok(()) };
    if other == *rank {
        report::report(Finding::DifferentArguments, other, &format!("{text}; {}", state.name()));
    }
    if *STRICT { Err(Error::usage(format!("{text} (LIBNCCL_CPU_STRICT is 1)"))) } else { Ok(()) }
}

#[derive(PartialEq, Eq)]
struct Arguments {
    call: String,
    values: Vec<(String, String)>,
}

impl Arguments {
    fn new(communicator: &Communicator, function: &str, arguments: &[(&str, String)]) -> Self {
        let mut values = arguments.to_vec();
        let config = &communicator.config;
        values.extend(config.options.iter().map(|(name, value)| (*name, value.to_string())));
        let names = [("netName", &config.network), ("commName", &config.name)];
        values.extend(names.into_iter().filter_map(|(what, name)| Some((what, quote(name.as_ref()?)))));
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { call: function.to_owned(), values }
    }

    /// Returns one line for the call and one for each value.
    fn to_text(&self) -> String {
        let mut text = self.call.clone();
        for (name, value) in &self.values {
            let _ = write!(text, "\n{name}={value}");
        }
        text
    }

    /// Parses the text of another rank, up to a NUL or the end. The text may be malformed.
    fn parse(text: &str) -> Self {
        let mut lines = text.split('\0').next().unwrap_or_default().lines();
        let call = lines.next().unwrap_or_default().to_owned();
        let value =
            |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { call, values: lines.filter_map(value).collect() }
    }

    fn value(&self, name: &str) -> &str {
        self.values.iter().find(|(known, _)| known == name).map_or("unset", |(_, value)| value)
    }
}

/// Returns a name without line breaks.
fn quote(name: &str) -> String {
    let cut: String = name.chars().take(NAME).collect();
    format!("{cut:?}")
}

/// Returns the first rank whose arguments differ, and a description of the difference. Each rank is compared with the first rank that
/// called the same function, because the new ranks of a growing communicator call a different function.
fn difference(all: &[Arguments]) -> Option<(usize, String)> {
    all.iter().enumerate().find_map(|(rank, own)| {
        let first = all.iter().position(|other| is_same_call(&other.call, &own.call))?;
        let names = all[first].values.iter().chain(&own.values).map(|(name, _)| name);
        let mut differing: Vec<&String> = vec![];
        for name in names {
            if own.value(name) != all[first].value(name) && !differing.contains(&name) {
                differing.push(name);
            }
        }
        let differing: Vec<String> = differing
            .into_iter()
            .map(|name| {
                format!("{name} (rank {rank}: {}, rank {first}: {})", own.value(name), all[first].value(name))
            })
            .collect();
        let text = format!("the ranks called {} with different {}", own.call, differing.join(" and "));
        (!differing.is_empty()).then_some((rank, text))
    })
}

/// Returns whether ranks that called these functions must pass the same arguments. Calls with one unique id and with several can be mixed.
fn is_same_call(one: &str, other: &str) -> bool {
    one == other || [one, other].iter().all(|call| call.starts_with("ncclCommInitRank"))
}

/// Gathers the data of all ranks in a call with this number, while a communicator is created.
pub(crate) fn exchange(
    state: &SharedState,
    rank: usize,
    (call, number): (ControlCall, u64),
    own: &[u8],
    is_cancelled: impl Fn() -> bool,
) -> Result<Vec<Vec<u8>>> {
    let (peers, mut report) = (PeerAccess::default(), WaitReport::default());
    let context = CallContext { state, rank, peers: &peers };
    let header = CallHeader::Control { call, length: own.len() as u64 };
    executor::run_one(control_allgather(state, rank, call, own), state.ranks(), |waited| {
        state.check_liveness();
        report.check_call(waited, number, header, context);
        if is_cancelled() {
            state.set_abort(rank, AbortReason::Aborted);
        }
    })
}

/// Returns whether several ranks may share a device (`NCCL_MULTI_RANK_GPU_ENABLE=1`).
pub(crate) fn may_repeat() -> bool {
    variable("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|value| value == "1")
}

const DEVICE_LENGTH: usize = 16;

/// A rank's device in the form that the ranks compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Device {
    /// The device number in the rank's process.
    number: i32,
    /// The number of the PCI bus, which is the same in all processes.
    bus: i32,
    /// Bit set of the buses of the devices that are visible to the rank's process.
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

    fn to_bytes(self) -> Vec<u8> {
        [&self.number.to_ne_bytes()[..], &self.bus.to_ne_bytes(), &self.visible.to_ne_bytes()].concat()
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            number: i32::from_ne_bytes(*bytes.first_chunk()?),
            bus: i32::from_ne_bytes(*bytes.get(4..)?.first_chunk()?),
            visible: u64::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
        })
    }
}

fn check_devices(all: &[Vec<u8>]) -> Result {
    if may_repeat() {
        return Ok(());
    }
    let all: Option<Vec<Device>> = all.iter().map(|bytes| Device::of_bytes(bytes)).collect();
    let all = all.ok_or_else(|| Error::internal("a rank sent no device"))?;
    repeated(&all).map_or(Ok(()), |text| Err(Error::usage(text)))
}

/// Returns the prefix of an error if there are fewer devices than ranks, and an empty string otherwise.
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

    fn arguments(text: &str) -> Arguments {
        let parsed = Arguments::parse(&format!("{text}\0\0"));
        assert_eq!(parsed.to_text(), text);
        parsed
    }

    fn check_difference(texts: &[&str]) -> Option<(usize, String)> {
        difference(&texts.iter().map(|text| arguments(text)).collect::<Vec<_>>())
    }

    #[test]
    fn difference_names_both_ranks_and_values() {
        let both = "ncclCommSplit\nminCTAs=4\ncommName=\"a=b\"";
        assert_eq!(check_difference(&[both, both]), None);
        let text = "the ranks called ncclCommSplit with different minCTAs (rank 2: unset, rank 0: 4) and commName (rank 2: \"c\", \
                    rank 0: \"a=b\")";
        assert_eq!(check_difference(&[both, both, "ncclCommSplit\ncommName=\"c\""]), Some((2, text.into())));
    }

    #[test]
    fn ranks_that_grow_a_communicator_are_not_compared_with_new_ones() {
        let texts = [
            "ncclCommGrow\nminCTAs=2",
            "ncclCommGrow\nminCTAs=2",
            "ncclCommInitRank",
            "ncclCommInitRank\nminCTAs=2",
        ];
        assert_eq!(check_difference(&texts[..3]), None);
        let (rank, text) = check_difference(&texts).unwrap();
        assert_eq!(rank, 3);
        assert!(text.contains("minCTAs (rank 3: 2, rank 2: unset)"), "{text}");
    }

    #[test]
    fn one_id_differs_from_several() {
        let (rank, text) =
            check_difference(&["ncclCommInitRank", "ncclCommInitRankScalable\nnId=2"]).unwrap();
        assert_eq!(
            (rank, text.as_str()),
            (1, "the ranks called ncclCommInitRankScalable with different nId (rank 1: 2, rank 0: unset)")
        );
    }

    #[test]
    fn text_of_another_rank_may_be_any() {
        for text in ["", "\n\n=\n", "\0", "a\nb\n=c=d"] {
            Arguments::parse(text);
        }
    }

    #[test]
    fn name_is_one_line() {
        assert_eq!(quote("a\nb"), "\"a\\nb\"");
        assert_eq!(quote(&"x".repeat(1000)).len(), NAME + 2);
    }

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
