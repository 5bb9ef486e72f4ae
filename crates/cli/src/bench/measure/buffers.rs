//! The buffers of a rank, with the data that it sends and that it must receive, and their registrations with NCCL.
#![allow(unsafe_code)]

use std::ops::Range;

use anyhow::Result;
use libnccl::observer::Extent;
use libnccl::window::{Registration, Window, WindowFlags};
use libnccl::{DataType, Nccl};

use super::memory::{Buffer, Memory};
use super::ranks::Ranks;
use crate::bench::arguments::Register;
use crate::bench::benchmark::Benchmark;
use crate::bench::data::{Comparison, Data, Pattern};
use crate::bench::parameters::{Case, Parameters};

/// The buffers of a rank. All ranges begin at the first element that is used.
pub(crate) struct Buffers {
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
    rank: usize,
}

impl Buffers {
    pub(crate) fn new(
        nccl: &Nccl,
        memory: &Memory,
        data_type: DataType,
        rank: usize,
        length: usize,
    ) -> Result<Self> {
        let [send, recv] = [(); 2].map(|()| memory.buffer(nccl, data_type, length));
        Ok(Self { send: send?, recv: recv?, rank })
    }

    /// Writes the data to send, and a different pattern where data will be received.
    pub(crate) fn fill(&mut self, case: Case<'_>, data: &Data) -> Result<()> {
        let Case { parameters, shape, in_place } = case;
        let start = parameters.unalign;
        let sent = data.sent(self.rank);
        self.recv.fill(start..start + shape.total(), &data.untouched())?;
        if in_place {
            let part = shape.sent_in_place(self.rank);
            self.recv.fill(start + part.start..start + part.end, &sent)
        } else {
            self.send.fill(start..start + shape.send, &sent)
        }
    }

    pub(crate) fn compare(&self, case: Case<'_>, data: &Data) -> Result<Comparison> {
        let Case { parameters, shape, in_place } = case;
        let start = parameters.unalign + if in_place { shape.received_in_place(self.rank).start } else { 0 };
        let mut all = Comparison::default();
        for (part, pattern) in self.expected(case, data) {
            let comparison = self.recv.compare(start + part.start..start + part.end, &pattern)?;
            all.add(comparison, part.start);
        }
        Ok(all)
    }

    fn expected(&self, case: Case<'_>, data: &Data) -> Vec<(Range<usize>, Pattern)> {
        let Case { parameters, shape, in_place } = case;
        let &Parameters { benchmark, root, ranks, .. } = parameters;
        let (operation, rank, count) = (benchmark.operation(), self.rank, shape.count);
        let all = |pattern| vec![(0..shape.recv, pattern)];
        // The place of this rank's part in what another sends.
        let start = if operation.sends == Extent::CountPerRank { rank * count } else { 0 };
        match benchmark {
            Benchmark::SendRecv => all(data.sent((rank + ranks - 1) % ranks)),
            Benchmark::AllToAllV => {
                let mut end = 0;
                let part = |from| {
                    let (start, sent) = (end, (0..rank).map(|to| shape.part(from, to)).sum());
                    end += shape.part(from, rank);
                    (start..end, data.sent(from).from(sent))
                };
                (0..ranks).map(part).collect()
            }
            // The receive buffer stays unchanged.
            _ if !operation.is_receiver(rank == root) => {
                let sent = if in_place { shape.sent_in_place(rank) } else { 0..0 };
                let (before, after) = (0..sent.start, sent.end..shape.recv);
                vec![(before, data.untouched()), (sent, data.sent(rank)), (after, data.untouched())]
            }
            _ if operation.reduces => all(data.reduced().from(start)),
            _ if operation.receives == Extent::Count => all(data.sent(root).from(start)),
            _ => {
                let part = |from| (from * count..(from + 1) * count, data.sent(from).from(start));
                (0..ranks).map(part).collect()
            }
        }
    }
}

pub(crate) struct Registrations {
    local: Vec<Registration>,
    windows: Vec<Window<u8>>,
}

impl Registrations {
    /// Registers the buffers of each rank, as far as it is wanted; for windows, all ranks have to.
    pub(crate) fn new(ranks: &Ranks, buffers: &mut [Buffers], register: Register) -> Result<Self> {
        let (mut local, mut windows) = (vec![], vec![]);
        match register {
            Register::None => {}
            Register::Local => {
                for (member, buffers) in ranks.members.iter().zip(buffers) {
                    for buffer in [&mut buffers.send, &mut buffers.recv] {
                        local.push(member.communicator.register(buffer.allocation()?)?);
                    }
                }
            }
            Register::Symmetric => {
                windows = ranks.nccl.try_group(|group| {
                    let mut windows = vec![];
                    for (member, buffers) in ranks.members.iter().zip(buffers) {
                        member.memory.make_current()?;
                        for buffer in [&mut buffers.send, &mut buffers.recv] {
                            let (buffer, flags) = (buffer.allocation()?, WindowFlags::COLL_SYMMETRIC);
                            // SAFETY: the size follows from the parameters, which are those of all ranks.
                            windows
                                .push(unsafe { group.register_window(&member.communicator, buffer, flags) }?);
                        }
                    }
                    anyhow::Ok(windows)
                })?;
            }
        }
        Ok(Self { local, windows })
    }

    /// Ends the registrations. All ranks have to call it.
    pub(crate) fn end(self, ranks: &mut Ranks, buffers: &mut [Buffers]) -> Result<()> {
        if self.local.is_empty() && self.windows.is_empty() {
            return Ok(());
        }
        ranks.barrier()?;
        for buffers in buffers {
            for buffer in [&mut buffers.send, &mut buffers.recv] {
                // SAFETY: all ranks have waited for their streams and then for each other.
                unsafe { buffer.allocation()?.assume_idle() };
            }
        }
        for registration in self.local {
            registration.deregister()?;
        }
        for window in self.windows {
            window.deregister()?;
        }
        // Other ranks may use their part until here, and the communicators end next.
        ranks.barrier()
    }
}
