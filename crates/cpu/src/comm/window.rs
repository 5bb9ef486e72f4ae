//! The windows of a communicator, and the operation that registers one.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libnccl::sys::ncclWindow_t;

use crate::coll::call_header::{CallHeader, ControlCall};
use crate::coll::operation::Operation;
use crate::coll::window::{Window, WindowPart};
use crate::comm::out_param::OutParam;
use crate::comm::registry::{Kind, Registry};
use crate::diag::error::Result;
use crate::shm::call_context::CallContext;
use crate::shm::window_memory::WindowMemory;
use crate::sync::executor;

/// The windows of a communicator.
#[derive(Debug)]
pub(crate) struct Windows {
    registry: Registry<Arc<Window>>,
    /// Set by the first window, and never cleared.
    any_registered: AtomicBool,
}

/// The registration of a window.
#[derive(Debug)]
pub(crate) struct RegisterWindow {
    pub(crate) windows: Arc<Windows>,
    pub(crate) part: WindowPart,
    /// Lists the memory as a window's from the call on.
    pub(crate) memory: Arc<WindowMemory>,
    pub(crate) out: OutParam<ncclWindow_t>,
}

impl Default for Windows {
    fn default() -> Self {
        Self { registry: Registry::new(Kind::Window), any_registered: AtomicBool::new(false) }
    }
}

impl Windows {
    /// Adds a window and returns the number that is its handle.
    fn add(&self, window: Window) -> usize {
        self.any_registered.store(true, Relaxed);
        self.registry.add(Arc::new(window))
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<Window>> {
        self.registry.get(handle)
    }

    /// Deregisters a window of the rank of `context`.
    pub(crate) fn remove(&self, handle: usize, context: CallContext<'_>) -> Result {
        let window = self.registry.remove(handle)?;
        close(&window, context)
    }

    /// Deregisters all windows of the rank of `context`.
    pub(crate) fn remove_all(&self, context: CallContext<'_>) -> Result {
        self.registry.remove_all().iter().try_for_each(|window| close(window, context))
    }

    /// Returns the number of windows.
    pub(crate) fn len(&self) -> usize {
        self.registry.len()
    }

    /// Returns `true` if a window has ever been registered.
    pub(crate) fn any_registered(&self) -> bool {
        self.any_registered.load(Relaxed)
    }

    /// Returns the number of a window that passes the test.
    pub(crate) fn find(&self, test: impl Fn(&Window) -> bool) -> Option<usize> {
        self.registry.find(|window| test(window))
    }

    /// Returns `true` if `length` bytes at `start` are in this rank's part of a symmetric window.
    pub(crate) fn contain(&self, start: usize, length: usize) -> bool {
        self.registry.any(|window| window.is_symmetric() && window.contains(start, length))
    }
}

fn close(window: &Window, CallContext { state, .. }: CallContext<'_>) -> Result {
    let close = async {
        window.close(state).await;
        Ok(())
    };
    executor::run_one(close, state.ranks(), |_| ())
}

impl Operation for RegisterWindow {
    fn header(&self) -> CallHeader {
        CallHeader::Control { call: ControlCall::RegisterWindow, length: 0 }
    }

    async fn run(&self, context: CallContext<'_>) -> Result {
        let window = Window::register(context, self.part, Arc::clone(&self.memory)).await?;
        let handle = |window| ptr::without_provenance_mut(self.windows.add(window));
        self.out.write(window.map_or(ptr::null_mut(), handle));
        Ok(())
    }
}
