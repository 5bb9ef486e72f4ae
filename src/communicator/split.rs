#![allow(unsafe_code)]

use std::ptr;

use super::Communicator;
use super::state::State;
use crate::backend::call;
use crate::group::forbid_open;
use crate::{Config, Error, Result, ResultCode, sys};

impl Communicator {
    /// Parts the ranks into new communicators: all that name the same `color` get one together, ordered by
    /// `key`, then by their rank here. A rank with no color gets none. Since NCCL 2.18.1.
    ///
    /// All ranks call this. The new communicator has this one's options.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of four ranks:
    /// let half = (comm.rank() / 2) as u32;
    /// let node = comm.split(Some(half), 0)?.expect("this rank named a color");
    /// assert_eq!((node.size(), node.rank()), (2, comm.rank() % 2));
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1, 2, 3])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the color is beyond `i32::MAX`, [`Error::Unsupported`], [`Error::Nccl`].
    #[doc(alias = "ncclCommSplit")]
    #[doc(alias = "NCCL_SPLIT_NOCOLOR")]
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        self.split_with(color, key, &Config::default())
    }

    /// [`split`](Self::split) with options for the new communicator. Those that are not set are NCCL's defaults,
    /// but for the timeout; with none set, all are this communicator's. Since NCCL 2.18.1.
    ///
    /// ```
    /// # use libnccl::{Communicator, Config, Result};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of three ranks:
    /// let config = Config::new().split_share(true).name("even ranks");
    /// let even = comm.split_with((comm.rank() % 2 == 0).then_some(0), 0, &config)?;
    /// assert_eq!(even.is_none(), comm.rank() == 1);
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1, 2])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`split`](Self::split).
    #[doc(alias = "ncclCommSplit")]
    pub fn split_with(&self, color: Option<u32>, key: i32, config: &Config) -> Result<Option<Self>> {
        let c_color = match color.map(i32::try_from) {
            None => sys::NCCL_SPLIT_NOCOLOR,
            Some(Ok(color)) => color,
            Some(Err(_)) => {
                let color = color.unwrap_or_default();
                return Err(Error::argument("split", format!("color {color} is beyond {}", i32::MAX)));
            }
        };
        self.descend("split", config, State::enter, |slot, config| {
            // SAFETY: a live communicator; the slot and the configuration are as NCCL wants them.
            unsafe { call!(self.library(), ncclCommSplit(self.raw(), c_color, key, slot, config)) }
        })
    }

    /// Makes a communicator out of this one, which `enter` lets into NCCL. `None` if NCCL leaves the slot empty.
    pub(super) fn descend(
        &self,
        call: &'static str,
        config: &Config,
        enter: fn(&State, &'static str) -> Result<()>,
        make: impl FnOnce(*mut sys::ncclComm_t, *mut sys::ncclConfig_t) -> Result<ResultCode>,
    ) -> Result<Option<Self>> {
        forbid_open(call)?;
        let library = self.library();
        // With nothing set, NCCL takes this communicator's options.
        let inherits = config.is_default();
        let config = config.clone().or_timeout(self.timeout);
        let mut raw_config = config.to_raw(call, library.version, &library.backend.to_string())?;
        let name = raw_config.name().or_else(|| self.shared.name.clone());
        let raw_config = if inherits { ptr::null_mut() } else { raw_config.as_mut_ptr() };
        let slot = Slot::new();
        enter(&self.shared.state, call)?;
        let made = make(slot.0, raw_config);
        // A nonblocking communicator answers success at once, and writes the slot when its state says so (seen on
        // 2.28.3 and 2.32.3): so ask for it, whatever the answer was.
        let written = made.and_then(|_| self.wait(call)).inspect_err(|_| {
            // What was made before the failure is no one's. NCCL may still write, so the slot is left to it.
            let raw = slot.peek();
            if !raw.is_null() {
                // SAFETY: a handle that no one else has.
                let _ = unsafe { call!(library, ncclCommAbort(raw)) };
            }
        });
        let child = written.and_then(|()| {
            let raw = slot.into_inner();
            if raw.is_null() {
                return Ok(None);
            }
            let (timeout, parent) = (config.timeout_duration(), Some(&self.shared.state));
            // SAFETY: NCCL has just made the handle, and no one else has it.
            unsafe { Self::adopt_child(library, raw, ResultCode::IN_PROGRESS, timeout, name, parent) }
                .map(Some)
        });
        self.leave();
        child
    }
}

/// Where NCCL writes a handle to. It keeps the address and may write after the call has returned, also when it
/// fails: so this is on the heap, and is leaked unless the operation is known to be complete.
struct Slot(*mut sys::ncclComm_t);

impl Slot {
    fn new() -> Self {
        Self(Box::into_raw(Box::new(ptr::null_mut())))
    }

    /// What has been written so far.
    fn peek(&self) -> sys::ncclComm_t {
        // SAFETY: made from a box in `new`, and not taken back yet.
        unsafe { self.0.read_volatile() }
    }

    /// The operation is complete.
    fn into_inner(self) -> sys::ncclComm_t {
        // SAFETY: made from a box in `new`, and taken back only here.
        *unsafe { Box::from_raw(self.0) }
    }
}
