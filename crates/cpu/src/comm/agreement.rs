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

/// Number of bytes that each rank exchanges. Arguments never need more.
const LENGTH: usize = 4096;

/// Maximum number of characters of a name that are compared.
const NAME: usize = 256;

/// Checks, together with the other ranks of a new communicator, that no two ranks have the same device and that all ranks passed
/// the same arguments and options. The first rank whose arguments differ reports a finding.
///
/// # Errors
/// Fails if two ranks have the same device without [permission](may_repeat) or, in strict mode, if the arguments differ.
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
    let arguments = arguments_text(communicator, function, arguments);
    let mut own = Summary { digest: fnv1a(&[arguments.as_bytes()]) as u64, ..Summary::default() };
    if let Some(driver) = communicator.known_driver() {
        own.set_device(driver, communicator.device)?;
    }
    let all: Option<Vec<Summary>> =
        exchange(&own.to_bytes())?.iter().map(|bytes| Summary::of_bytes(bytes)).collect();
    let all = all.ok_or_else(|| Error::internal("a rank sent no device"))?;
    if communicator.known_driver().is_some()
        && !may_repeat()
        && let Some(text) = repeated(&all)
    {
        return Err(Error::usage(text));
    }
    if all.iter().all(|other| other.digest == own.digest) {
        return Ok(());
    }
    let mut own = arguments.into_bytes();
    own.resize(LENGTH, 0);
    let all: Vec<String> = exchange(&own)?.iter().map(|text| String::from_utf8_lossy(text).into()).collect();
    let all: Vec<&str> = all.iter().map(|text| text.trim_end_matches('\0')).collect();
    let Some((other, text)) = difference(&all) else { return Ok(()) };
    if other == *rank {
        report::report(Finding::DifferentArguments, other, &format!("{text}; {}", state.name()));
    }
    if *STRICT { Err(Error::usage(format!("{text} (LIBNCCL_CPU_STRICT is 1)"))) } else { Ok(()) }
}

/// Returns what the ranks compare: a line for the called function, and a `name=value` line for each argument or option.
fn arguments_text(communicator: &Communicator, function: &str, arguments: &[(&str, String)]) -> String {
    let config = &communicator.config;
    let options = config.options.iter().map(|(name, value)| (*name, value.to_string()));
    let names = [("netName", &config.network), ("commName", &config.name)];
    let names = names.into_iter().filter_map(|(what, name)| Some((what, quote(name.as_ref()?))));
    let mut text = function.to_owned();
    for (name, value) in arguments.iter().cloned().chain(options).chain(names) {
        let _ = write!(text, "\n{name}={value}");
    }
    text
}

/// Returns the first [`NAME`] characters of a name, quoted and without line breaks.
fn quote(name: &str) -> String {
    let cut: String = name.chars().take(NAME).collect();
    format!("{cut:?}")
}

/// Returns the first rank whose arguments differ, and a description of the difference. Each rank is compared with the first rank that
/// called the same function, because the new ranks of a growing communicator call a different function. The texts may be malformed.
fn difference(all: &[&str]) -> Option<(usize, String)> {
    let call = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let values = |rank: usize| all[rank].lines().filter_map(|line| line.split_once('='));
    let value =
        |rank, wanted| values(rank).find(|(name, _)| *name == wanted).map_or("unset", |(_, value)| value);
    (0..all.len()).find_map(|rank| {
        let own = call(all[rank]);
        let first = all.iter().position(|other| is_same_call(&call(other), &own))?;
        let mut differing: Vec<String> = vec![];
        for (name, _) in values(first).chain(values(rank)) {
            let (here, there) = (value(rank, name), value(first, name));
            let text = format!("{name} (rank {rank}: {here}, rank {first}: {there})");
            if here != there && !differing.contains(&text) {
                differing.push(text);
            }
        }
        let text = format!("the ranks called {own} with different {}", differing.join(" and "));
        (!differing.is_empty()).then_some((rank, text))
    })
}

/// Returns whether callers of these functions must pass the same arguments. The variants of `ncclCommInitRank` can be mixed.
fn is_same_call(one: &str, other: &str) -> bool {
    one == other || [one, other].iter().all(|call| call.starts_with("ncclCommInitRank"))
}

/// Gathers the data of all ranks while a communicator is created. `call` and `number` identify the call in reports.
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

/// The data that a rank publishes first: its device, whose fields are 0 without CUDA, and a digest of its arguments.
#[derive(Clone, Copy, Default)]
struct Summary {
    /// The device number in the rank's process.
    number: i32,
    /// The number of the PCI bus, which is the same in all processes.
    bus: i32,
    /// The buses of the devices visible to the rank's process, as a bit set.
    visible: u64,
    digest: u64,
}

impl Summary {
    fn set_device(&mut self, driver: &Driver, number: i32) -> Result {
        for device in 0..driver.devices()? {
            self.visible |= 1_u64.rotate_left(driver.bus(device)?.unsigned_abs());
        }
        (self.number, self.bus) = (number, driver.bus(number)?);
        Ok(())
    }

    fn to_bytes(self) -> Vec<u8> {
        let words = [self.number as u64, self.bus as u64, self.visible, self.digest];
        words.map(u64::to_ne_bytes).concat()
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.as_chunks();
        let [number, bus, visible, digest] = <[[u8; 8]; 4]>::try_from(words).ok()?.map(u64::from_ne_bytes);
        Some(Self { number: number as i32, bus: bus as i32, visible, digest })
    }
}

/// Returns a prefix for an error text if there are fewer devices than ranks, and an empty string otherwise.
pub(crate) fn shortage(ranks: usize, devices: usize) -> String {
    match devices {
        _ if devices >= ranks => String::new(),
        1 => format!("{ranks} ranks, 1 device: "),
        _ => format!("{ranks} ranks, {devices} devices: "),
    }
}

/// Describes the first two ranks that have the same device.
fn repeated(devices: &[Summary]) -> Option<String> {
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

    #[test]
    fn difference_names_ranks_that_called_the_same_function_and_their_values() {
        let [none, two] = ["ncclCommInitRank", "ncclCommInitRank\nminCTAs=2"];
        let [both, other] = ["ncclCommSplit\nminCTAs=4\ncommName=\"a=b\"", "ncclCommSplit\ncommName=\"c\""];
        let [grown, several] = ["ncclCommGrow\nminCTAs=2", "ncclCommInitRankScalable\nnId=2"];
        for (texts, expected) in [
            (&[both, both][..], None),
            (&[grown, grown, none], None),
            (
                &[grown, none, two],
                Some((2, "ncclCommInitRank with different minCTAs (rank 2: 2, rank 1: unset)")),
            ),
            (
                &[none, several],
                Some((1, "ncclCommInitRankScalable with different nId (rank 1: 2, rank 0: unset)")),
            ),
            (
                &[both, both, other],
                Some((
                    2,
                    "ncclCommSplit with different minCTAs (rank 2: unset, rank 0: 4) and commName (rank 2: \"c\", rank 0: \"a=b\")",
                )),
            ),
        ] {
            let expected = expected.map(|(rank, text)| (rank, format!("the ranks called {text}")));
            assert_eq!(difference(texts), expected);
        }
        let _malformed = difference(&["", "\n\n=\n", "a\nb\n=c=d"]);
        assert_eq!(quote("a\nb"), "\"a\\nb\"");
    }

    #[test]
    fn devices_are_compared_by_their_bus_and_counted_over_all_ranks() {
        let device = |number, bus, visible: &[u32]| {
            let visible = visible.iter().fold(0, |all, bus| all | 1_u64.rotate_left(*bus));
            Summary::of_bytes(&Summary { number, bus, visible, digest: 0 }.to_bytes()).unwrap()
        };
        let (both, one) = (|number, bus| device(number, bus, &[3, 4]), device(0, 1, &[1]));
        assert_eq!(repeated(&[device(0, 3, &[3]), device(0, 4, &[4])]), None);
        assert_eq!(repeated(&[both(0, 3), both(1, 4)]), None);
        assert_eq!(
            repeated(&[both(0, 3), device(0, 4, &[4]), both(1, 4)]).unwrap(),
            "3 ranks, 2 devices: rank 1 on device 0 and rank 2 on device 1 are both on the GPU with PCI bus id 0000:04:00.0, which \
             NCCL_MULTI_RANK_GPU_ENABLE=1 allows"
        );
        let text = repeated(&[one, one]).unwrap();
        assert!(text.starts_with("2 ranks, 1 device: rank 0 and rank 1 are both on device 0 with PCI"));
        let all = |number| device(number, number + 1, &[1, 2, 64]);
        assert!(repeated(&[all(0), all(1), all(0)]).unwrap().starts_with("rank 0 and rank 2 are both on"));
        assert!(repeated(&[all(0), all(1), all(0), one]).unwrap().starts_with("4 ranks, 3 devices: rank 0"));
    }
}
