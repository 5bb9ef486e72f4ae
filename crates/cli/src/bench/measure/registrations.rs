//! Registrations of the buffers of a thread's ranks with NCCL.
#![allow(unsafe_code)]

use anyhow::Result;
use libnccl::window::{Registration, Window, WindowFlags};

use super::buffers::Buffers;
use super::ranks::Ranks;
use crate::bench::choices::Register;

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
