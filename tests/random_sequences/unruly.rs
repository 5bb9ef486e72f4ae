//! An observer that panics, and uses NCCL itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libnccl::observer::{CommunicatorEvent, Membership, Observer, OperationEnd, OperationStart};

use crate::buffer::{STREAM, panic_on_purpose, panic_twice_on_purpose};

#[derive(Default)]
pub(crate) struct Unruly(AtomicU64);

impl Unruly {
    fn act(&self) {
        match self.0.fetch_add(1, Relaxed) % 8 {
            2 => panic_on_purpose(),
            4 => panic_twice_on_purpose(),
            7 => {
                // Refused in an open group.
                let comms = libnccl_cpu::nccl().init_all(&[0]);
                let _ = comms.and_then(|comms| comms[0].barrier(&mut [0_u8], STREAM));
            }
            _ => {}
        }
    }
}

impl Observer for Unruly {
    fn on_start(&self, _: &OperationStart<'_>) {
        self.act();
    }

    fn on_end(&self, _: &OperationEnd<'_>) {
        self.act();
    }

    fn on_communicator(&self, _: &Membership, _: CommunicatorEvent) {
        self.act();
    }
}
