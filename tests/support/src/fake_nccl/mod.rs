//! A fake NCCL: it logs the calls that it receives, behaves like NCCL without moving data, deviates according to each
//! [`Rule`], and reports violations of NCCL's contract.
#![allow(unsafe_code)]

mod arguments;
mod dispatch;
mod functions;
mod memory;
mod model;
mod rule;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use libnccl::error::LoadError;
use libnccl::sys::{self, Functions};
use libnccl::{Nccl, Version};

use dispatch::{SharedState, lock};
use model::State;
pub use model::{Behavior, REGISTRATION, USER_POINTER, WINDOW};
pub use rule::{ErrorText, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Output, Rule, SUCCESS};

/// A fake library; clones share it.
#[derive(Clone)]
pub struct FakeNccl(SharedState);

impl fmt::Debug for FakeNccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeNccl").finish_non_exhaustive()
    }
}

impl FakeNccl {
    /// Creates a fake of the header's version with all functions, and directs this thread's calls to it.
    #[expect(clippy::new_without_default, reason = "it is more than a value: it directs calls")]
    pub fn new() -> Self {
        let fake = Self(Arc::new(Mutex::new(State::new())));
        dispatch::publish(&fake.0);
        fake.attach();
        fake
    }

    /// Creates a fake with this version and its functions.
    pub fn of_version(version: Version) -> Self {
        let fake = Self::new();
        fake.set(|fake| fake.version = version.code().cast_signed());
        fake.remove_functions(|name| sys::since(name).unwrap_or_default() > version.code());
        fake
    }

    /// Directs the calls of the current thread to this fake.
    pub fn attach(&self) {
        dispatch::attach(&self.0);
    }

    /// Opens the fake as a library.
    pub fn load(&self) -> Result<Nccl, LoadError> {
        let absent = self.state().absent.clone();
        let table = functions::table(|name| !absent.contains(name));
        // SAFETY: the signatures are the header's, and the fake keeps NCCL's contracts as far as the facade relies on
        // them.
        unsafe { Nccl::from_table("the fake NCCL", table) }
    }

    /// Opens the fake as a library, and forgets the calls that this made.
    pub fn nccl(&self) -> Nccl {
        let nccl = self.load().unwrap();
        self.take_log();
        nccl
    }

    /// Changes the behavior.
    pub fn set(&self, change: impl FnOnce(&mut Behavior)) {
        change(&mut self.state().behavior);
    }

    /// Removes functions from the tables of libraries that are opened later.
    pub fn remove_functions(&self, is_removed: impl Fn(&str) -> bool) {
        self.state().absent.extend(Functions::NAMES.iter().filter(|name| is_removed(name)));
    }

    /// Adds a deviation of a function to those before it.
    pub fn add_rule(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Makes every call of a function return a code.
    pub fn set_code(&self, function: &'static str, code: u32) {
        self.add_rule(Rule::always(function, code));
    }

    /// Makes one call of a function return a code, after `after` others.
    pub fn set_code_once(&self, function: &'static str, after: usize, code: u32) {
        self.add_rule(Rule::once(function, after, code));
    }

    /// Returns whether any rule has applied to a call.
    pub fn has_deviated(&self) -> bool {
        self.state().has_deviated
    }

    /// Ends all deviations: rules, missing functions, version, texts and states.
    pub fn repair(&self) {
        let mut state = self.state();
        state.rules.clear();
        state.absent.clear();
        state.behavior.version = sys::NCCL_VERSION_CODE.cast_signed();
        state.behavior.error_text = ErrorText::PLAIN;
        state.async_states = [].into();
        state.last_async_state = SUCCESS;
    }

    /// Sets the states that `ncclCommGetAsyncError` reports: `first`, and then always `last`.
    pub fn set_async_states(&self, first: impl IntoIterator<Item = u32>, last: u32) {
        let mut state = self.state();
        (state.async_states, state.last_async_state) = (first.into_iter().collect(), last);
    }

    /// Returns how many of the first asynchronous states have not been queried.
    pub fn async_states_left(&self) -> usize {
        self.state().async_states.len()
    }

    /// Makes the addresses of later allocations this far from a multiple of a page.
    pub fn misalign_memory(&self, bytes: usize) {
        self.state().memory.misalignment = bytes;
    }

    /// Captures work of a communicator into a CUDA graph, which keeps NCCL from destroying the communicator.
    pub fn capture(&self, raw: sys::ncclComm_t) {
        self.state().comm(raw).expect("a communicator").has_graph = true;
    }

    /// Destroys all graphs.
    pub fn destroy_graphs(&self) {
        self.state().comms.iter_mut().for_each(|comm| comm.has_graph = false);
    }

    /// Returns the number of communicators that have not been destroyed.
    pub fn live_communicators(&self) -> usize {
        self.state().comms.iter().filter(|comm| comm.is_alive).count()
    }

    /// Writes a dangling handle for each child that is still pending, as NCCL's own thread may do at any time, and
    /// returns how many there were.
    pub fn write_pending_children(&self) -> usize {
        let mut state = self.state();
        let slots = std::mem::take(&mut state.pending_children);
        for slot in &slots {
            // SAFETY: the caller keeps the slot until NCCL is done, which is what is tested.
            unsafe { **slot = ptr::without_provenance_mut(0xdead) };
        }
        slots.len()
    }

    /// Returns the names of all functions that were called, in order.
    pub fn calls(&self) -> Vec<&'static str> {
        self.state().calls.clone()
    }

    /// Returns the calls since the last time, with their arguments.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Returns the operations that were started since the last time, immediately or by the end of a group.
    pub fn take_started(&self) -> Vec<String> {
        std::mem::take(&mut self.state().started)
    }

    /// Returns the caller's mistakes: use of a destroyed object, or a group left open.
    pub fn violations(&self) -> Vec<String> {
        self.state().all_violations()
    }

    /// Returns the communicators and operators that have not been destroyed.
    pub fn leaks(&self) -> Vec<String> {
        self.state().leaks()
    }

    /// Asserts that there are no violations, and that every communicator and every operator has been destroyed.
    pub fn assert_clean(&self, context: &str) {
        let state = self.state();
        let mut problems = state.all_violations();
        problems.extend(state.leaks());
        let log = state.log.join("\n  ");
        drop(state);
        assert!(problems.is_empty(), "{context}: {problems:?}, after\n  {log}");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}
