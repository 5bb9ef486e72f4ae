//! The arguments that all ranks of a new communicator have to pass alike. NCCL compares none of them.
//!
//! Each rank publishes a digest of its arguments. Only if the digests differ, the ranks exchange the arguments themselves.

use std::fmt::Write as _;

use crate::bootstrap::unique_id::fnv1a;
use crate::coll::call_header::{CallHeader, ControlCall};
use crate::coll::control_allgather::control_allgather;
use crate::coll::wait_report::WaitReport;
use crate::comm::communicator::{Communicator, RankInfo};
use crate::comm::devices;
use crate::comm::init::InitKind;
use crate::diag::error::{Error, Result};
use crate::diag::finding::Finding;
use crate::diag::report;
use crate::diag::settings::STRICT;
use crate::shm::call_context::CallContext;
use crate::shm::liveness::AbortReason;
use crate::shm::peer_access::PeerAccess;
use crate::sync::executor;

/// Bytes of the exchanged arguments, which is more than all of them take.
const LENGTH: usize = 4096;

/// Characters of a name that are compared.
const NAME: usize = 256;

/// Checks, with the other ranks of a new communicator, which have just joined, that no two have the same device, and that all passed
/// the arguments of `kind` and the options alike. A difference is a finding of the first rank that differs.
///
/// # Errors
/// Two ranks have one device. In strict mode: the arguments differ.
pub(crate) fn check(communicator: &Communicator, joined: &RankInfo, kind: &InitKind) -> Result {
    let RankInfo { state, rank, .. } = joined;
    if state.ranks() == 1 {
        return Ok(());
    }
    let arguments = Arguments::new(communicator, kind).to_text();
    let digest = fnv1a(&[arguments.as_bytes()]).to_ne_bytes();
    let own = [&devices::publish(communicator)?[..], &digest].concat();
    let all = exchange(communicator, joined, &own)?;
    if communicator.known_driver().is_some() {
        devices::check(&all)?;
    }
    if all.iter().all(|other| other[devices::LENGTH..] == all[0][devices::LENGTH..]) {
        return Ok(());
    }
    let mut own = arguments.into_bytes();
    own.resize(LENGTH, 0);
    let all = exchange(communicator, joined, &own)?;
    let all: Vec<_> = all.iter().map(|text| Arguments::parse(&String::from_utf8_lossy(text))).collect();
    let Some((other, text)) = difference(&all) else { return Ok(()) };
    if other == *rank {
        report::report(Finding::DifferentArguments, other, &format!("{text}; {}", state.name()));
    }
    if *STRICT { Err(Error::usage(format!("{text} (LIBNCCL_CPU_STRICT is 1)"))) } else { Ok(()) }
}

/// The function that a rank called, and its arguments.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    call: String,
    values: Vec<(String, String)>,
}

impl Arguments {
    fn new(communicator: &Communicator, kind: &InitKind) -> Self {
        let (call, mut values) = match kind {
            InitKind::Rank { ids: (number, digest), .. } if *number > 1 => (
                "ncclCommInitRankScalable",
                vec![("nId", number.to_string()), ("commIds", format!("{digest:#x}"))],
            ),
            InitKind::Rank { .. } => ("ncclCommInitRank", vec![]),
            InitKind::Split { .. } => ("ncclCommSplit", vec![]),
            InitKind::Shrink { flags, .. } => ("ncclCommShrink", vec![("shrinkFlags", flags.to_string())]),
            InitKind::Grow { .. } => ("ncclCommGrow", vec![]),
        };
        let config = communicator.config();
        values.extend(config.options.iter().map(|(name, value)| (*name, value.to_string())));
        let names = [("netName", &config.network), ("commName", &config.name)];
        values.extend(names.into_iter().filter_map(|(what, name)| Some((what, quote(name.as_ref()?)))));
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { call: call.to_owned(), values }
    }

    /// Returns one line for the call and one for each value.
    fn to_text(&self) -> String {
        let mut text = self.call.clone();
        for (name, value) in &self.values {
            let _ = write!(text, "\n{name}={value}");
        }
        text
    }

    /// Parses the text of another rank, which may be any, up to its end or to a NUL.
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

/// Returns the first rank whose arguments differ, and in what: each is compared with the first rank that called the same function, as
/// the new ranks of a communicator that grows call another one.
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

/// Returns whether ranks that called these functions passed the same arguments. One unique id and several can be mixed.
fn is_same_call(one: &str, other: &str) -> bool {
    one == other || [one, other].iter().all(|call| call.starts_with("ncclCommInitRank"))
}

/// Gathers data of all ranks, which have just joined.
fn exchange(
    communicator: &Communicator,
    RankInfo { state, rank, .. }: &RankInfo,
    own: &[u8],
) -> Result<Vec<Vec<u8>>> {
    let mut all = vec![];
    let gather = async {
        all = control_allgather(state, *rank, ControlCall::Arguments, own).await?;
        Ok(())
    };
    let (peers, mut report) = (PeerAccess::default(), WaitReport::default());
    let context = CallContext { state, rank: *rank, peers: &peers };
    let header = CallHeader::Control { call: ControlCall::Arguments, length: own.len() as u64 };
    executor::run_one(gather, state.ranks(), |waited| {
        state.check_liveness();
        report.check_call(waited, 0, header, context);
        if communicator.is_cancelled() {
            state.set_abort(*rank, AbortReason::Aborted);
        }
    })?;
    Ok(all)
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
}
