#![allow(unsafe_code)] // Calls NCCL, and ends communicators.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::communicator::Communicator;
use super::create_child::BegunChild;
use super::destroy::Finalized;
use super::inside::{Inside, check_no_open_group};
use super::out_param::OutParam;
use super::shared::{ABORT_LIMIT, Ending, Shared};
use super::split::to_c_color;
use super::state::Purpose;
use super::timer::Timer;
use crate::backend::call;
use crate::cuda::CudaContext;
use crate::{Config, Error, InvalidArgumentKind, MemorySpace, Nccl, Result, UniqueId, sys};

/// The first and the longest pause between two looks at the state of a communicator.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// Futures, which any executor can run.
///
/// The call is made at once, on the calling thread. The future then asks NCCL whether the call is complete each time that
/// it is polled, on whatever thread. One thread of this crate wakes the tasks that wait: 50 microseconds after the first
/// poll, then after twice the time, at most 1 ms. It ends when nothing waits any more.
///
/// The communicators are nonblocking, as those with a [timeout](Config::timeout) are. Only the methods that end in `_async`
/// return futures: the others, such as `all_reduce`, keep their thread until they are done.
impl Nccl {
    /// Creates a communicator as [`init_rank_with`](Self::init_rank_with) does, without blocking the thread until all ranks
    /// have joined. Without a [timeout](Config::timeout) it waits as long as it takes. Since NCCL 2.14.3.
    ///
    /// The rank belongs to the CUDA device that is current at the call. The call itself begins at once. A future that is
    /// dropped before it is ready aborts the communicator, for which it waits as [`abort`](Communicator::abort) does: the
    /// other ranks' calls then fail, or time out.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use libnccl::Config;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// runtime.block_on(async {
    ///     // Both ranks on one thread: each call returns before the other rank has joined.
    ///     let ranks = [0, 1].map(|rank| nccl.init_rank_async(2, rank, &id, &Config::new()));
    ///     for rank in ranks {
    ///         println!("{:?}", rank.await?);
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`init_rank_with`](Self::init_rank_with), each when the future is ready.
    #[doc(alias = "ncclCommInitRankConfig")]
    pub fn init_rank_async(
        &self,
        size: usize,
        rank: usize,
        id: &UniqueId,
        config: &Config,
    ) -> impl Future<Output = Result<Communicator>> + Send + use<> {
        const CALL: &str = "init_rank_async";
        let config = config.clone().inherit_timeout(Some(Duration::MAX));
        let begun = self.begin_rank(CALL, size, rank, std::slice::from_ref(id), &config).and_then(|begun| {
            let place = Place::new(begun.slot, &begun.shared);
            Ok(NewRank { completion: Completion::new(CALL, begun.shared, begun.timeout, None)?, place })
        });
        async move { begun?.complete().await }
    }
}

/// Futures; those of [`Nccl`] say how they work.
impl Communicator {
    /// Splits the ranks as [`split_with`](Self::split_with) does, without blocking the thread until all ranks have made the
    /// call. Since NCCL 2.18.1.
    ///
    /// The call begins at once. A future that is dropped before all ranks have made the call aborts this communicator, as
    /// NCCL cannot cancel a split in another way; later, it ends the new one alone.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use libnccl::Config;
    ///
    /// let nccl = libnccl_cpu::nccl();
    /// let id = nccl.unique_id()?;
    /// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// runtime.block_on(async {
    ///     let mut comm = nccl.init_rank_async(1, 0, &id, &Config::new()).await?;
    ///     if let Some(alone) = comm.split_async(Some(0), 0, &Config::new()).await? {
    ///         alone.destroy_async().await?;
    ///     }
    ///     comm.finalize_async().await?.destroy()?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`split_with`](Self::split_with), each when the future is ready; [`Error::InvalidUsage`] if this
    /// communicator is blocking, that is, was created without a timeout and not by a future.
    #[doc(alias = "ncclCommSplit")]
    pub fn split_async<'a>(
        &'a mut self,
        color: Option<u32>,
        key: i32,
        config: &Config,
    ) -> impl Future<Output = Result<Option<Self>>> + Send + use<'a> {
        let begun = self.begin_split("split_async", color, key, config);
        async move { begun?.complete().await }
    }

    /// Completes the work in progress as [`finalize`](Self::finalize) does, without blocking the thread until all ranks have
    /// made the call. Since NCCL 2.14.3.
    ///
    /// The call begins at once. A future that is dropped before it is ready aborts the communicator.
    /// [`Finalized::destroy`] then waits for no other rank. For an example, see [`split_async`](Self::split_async).
    ///
    /// # Errors
    /// The errors of [`finalize`](Self::finalize), each when the future is ready; [`Error::InvalidUsage`] if the
    /// communicator is blocking, as for [`split_async`](Self::split_async). In each case the communicator is ended.
    #[doc(alias = "ncclCommFinalize")]
    pub fn finalize_async(self) -> impl Future<Output = Result<Finalized>> + Send + use<> {
        let begun = self.begin_finalize("finalize_async", true);
        async move { begun?.complete().await }
    }

    /// Destroys the communicator as [`destroy`](Self::destroy) does, without blocking the thread until the work in progress
    /// is complete, all ranks have made the call, and NCCL has freed it. Since NCCL 2.14.3.
    ///
    /// The call begins at once. A future that is dropped before it is ready aborts the communicator, or leaves its end to
    /// NCCL if no other rank is waited for any more. On a GPU, another thread frees it. For an example, see
    /// [`split_async`](Self::split_async).
    ///
    /// # Errors
    /// The errors of [`destroy`](Self::destroy), each when the future is ready; [`Error::InvalidUsage`] if the communicator
    /// is blocking, as for [`split_async`](Self::split_async). In each case the communicator is ended.
    #[doc(alias = "ncclCommDestroy")]
    pub fn destroy_async(self) -> impl Future<Output = Result<()>> + Send + use<> {
        const CALL: &str = "destroy_async";
        let (begun, context) = (self.begin_destroy(CALL), CudaContext::current());
        async move {
            let Some(finalizing) = begun? else { return Ok(()) };
            finalizing.complete().await?.begin_destroy(CALL, context)?.complete().await
        }
    }

    fn begin_split(
        &self,
        call: &'static str,
        color: Option<u32>,
        key: i32,
        config: &Config,
    ) -> Result<Split> {
        self.require_nonblocking(call)?;
        let color = to_c_color(call, color)?;
        let shared = Arc::clone(&self.shared);
        let (called, inside, child) =
            self.begin_child(call, config, color, Purpose::Work, shared, |out, config| {
                // SAFETY: `begin_child` provides the out-parameter and the options.
                unsafe { self.call_split(color, key, out, config) }
            })?;
        let mut parent = Completion::new(call, Arc::clone(&self.shared), self.timeout, None)?;
        let failure = called.err();
        parent.is_over = failure.is_some();
        Ok(Split { parent, failure, child, is_complete: false, _inside: inside })
    }

    /// Finalizes it; if there is nothing to finalize, its work in progress is all that is waited for.
    fn begin_finalize(self, call: &'static str, finalizes: bool) -> Result<Finalizing> {
        self.require_nonblocking(call)?;
        let inside = Inside::ungrouped(Arc::clone(&self.shared), call, Purpose::WhileSuspended)?;
        if finalizes {
            self.shared.is_finalized.store(true, Relaxed);
            // SAFETY: a live communicator.
            unsafe { call!(self.library(), ncclCommFinalize(self.raw())) }?;
        }
        let completion = Completion::new(call, Arc::clone(&self.shared), self.timeout, None)?;
        Ok(Finalizing { completion, inside, communicator: self })
    }

    /// Begins to destroy it as [`destroy`](Self::destroy) does. Returns `None` if it is ended already.
    fn begin_destroy(self, call: &'static str) -> Result<Option<Finalizing>> {
        check_no_open_group(self.library(), call)?;
        if self.shared.state.is_failed() {
            return self.abort().map(|()| None);
        }
        let finalizes = !self.is_stopped.load(Relaxed);
        self.begin_finalize(call, finalizes).map(Some)
    }

    fn require_nonblocking(&self, call: &'static str) -> Result<()> {
        if self.is_nonblocking() {
            return Ok(());
        }
        let problem =
            "the communicator is blocking; expected one with a timeout, or created by init_rank_async";
        Err(Error::usage(call, problem))
    }
}

/// The completion of a call on a communicator, which is aborted if this is dropped before.
struct Completion {
    call: &'static str,
    shared: Arc<Shared>,
    start: Instant,
    timeout: Option<Duration>,
    /// The communicator that is in the call which creates this one.
    parent: Option<Arc<Shared>>,
    timer: Timer,
    pause: Duration,
    is_over: bool,
}

impl Completion {
    fn new(
        call: &'static str,
        shared: Arc<Shared>,
        timeout: Option<Duration>,
        parent: Option<Arc<Shared>>,
    ) -> Result<Self> {
        if shared.raw.is_null() {
            return Err(Error::argument(call, InvalidArgumentKind::Address, "the handle is null"));
        }
        let (start, [pause, _]) = (Instant::now(), PAUSES);
        Ok(Self { call, shared, start, timeout, parent, timer: Timer::default(), pause, is_over: false })
    }

    /// Waits for a new communicator, and creates its object.
    async fn communicator(mut self) -> Result<Communicator> {
        let waited = (&mut self).await;
        // Also after an error, with which its drop ends it.
        let mut communicator = Communicator::incomplete(self.call, Arc::clone(&self.shared), self.timeout)?;
        waited?;
        communicator.read_properties()?;
        Ok(communicator)
    }

    /// Aborts the communicator, unless the call is over.
    fn give_up(&mut self) {
        if !self.is_over {
            self.shared.end_call();
        }
        self.is_over = true;
    }
}

impl Future for Completion {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let parent = this.parent.as_ref().map(|parent| &parent.state);
        let progress = this.shared.progress(this.call, this.start, this.timeout, parent);
        if progress.is_pending() {
            let [_, longest] = PAUSES;
            this.timer.set(this.pause, context.waker());
            this.pause = longest.min(2 * this.pause);
        }
        this.is_over = progress.is_ready();
        progress
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The place of a new communicator's handle, which NCCL may use until the communicator is complete. On host memory, it is
/// done with it when the communicator is complete or ended; otherwise the place is leaked.
struct Place {
    slot: OutParam<sys::ncclComm>,
    is_unused: bool,
}

impl Place {
    fn new(slot: OutParam<sys::ncclComm>, communicator: &Shared) -> Self {
        Self { slot, is_unused: communicator.known_memory_space() == MemorySpace::Host }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_unused {
            // SAFETY: this is the last use, and NCCL is done with it: `NewRank` drops this after the completion.
            unsafe { self.slot.free() };
        }
    }
}

/// A rank that joins. (Its fields are dropped in this order.)
struct NewRank {
    completion: Completion,
    place: Place,
}

impl NewRank {
    async fn complete(self) -> Result<Communicator> {
        let Self { mut place, completion } = self;
        let created = completion.communicator().await;
        place.is_unused |= created.is_ok();
        created
    }
}

/// A split in progress. (Its fields are dropped in this order.)
struct Split {
    parent: Completion,
    failure: Option<Error>,
    child: BegunChild,
    is_complete: bool,
    _inside: Inside<Arc<Shared>>,
}

impl Split {
    async fn complete(mut self) -> Result<Option<Communicator>> {
        let written = match self.failure.take() {
            Some(error) => Err(error),
            None => (&mut self.parent).await,
        };
        let Completion { call, shared: parent, .. } = &self.parent;
        let child = match self.child.take(&parent.library, written)? {
            Some(shared) => {
                let completion = Completion::new(call, shared, self.child.timeout, Some(Arc::clone(parent)))?;
                Some(completion.communicator().await?)
            }
            None => None,
        };
        self.is_complete = true;
        Ok(child)
    }
}

impl Drop for Split {
    fn drop(&mut self) {
        let Completion { call, shared: parent, start, .. } = &self.parent;
        let (call, parent) = (*call, Arc::clone(parent));
        if !self.parent.is_over {
            // The parent may be complete without anyone having looked.
            let written = match parent.progress(call, *start, None, None) {
                Poll::Ready(written) => written,
                Poll::Pending => {
                    self.parent.give_up();
                    Err(Error::Aborted { call })
                }
            };
            self.parent.is_over = true;
            if let Ok(Some(child)) = self.child.take(&parent.library, written) {
                child.end_call();
            }
        }
        if self.is_complete || parent.known_memory_space() == MemorySpace::Host {
            // SAFETY: the last use. NCCL does not write it any more: parent and child are complete, or, on host memory, the
            // call has ended or is aborted.
            unsafe { self.child.out.free() };
        } // Otherwise NCCL may, so the place is leaked.
    }
}

/// A communicator that is finalized. (Its fields are dropped in this order.)
struct Finalizing {
    completion: Completion,
    inside: Inside<Arc<Shared>>,
    communicator: Communicator,
}

impl Finalizing {
    async fn complete(mut self) -> Result<Finalized> {
        let waited = (&mut self.completion).await;
        drop(self.inside);
        waited?;
        Ok(Finalized(self.communicator))
    }
}

impl Finalized {
    fn begin_destroy(self, call: &'static str, context: Option<CudaContext>) -> Result<Destroying> {
        let Self(communicator) = self;
        if !communicator.shared.state.end() {
            return Err(Error::Aborted { call });
        }
        // As in `Finalized::destroy`.
        let limit = communicator.timeout.map_or(Duration::MAX, |timeout| timeout.max(ABORT_LIMIT));
        // SAFETY: the state has told this thread to end it.
        let ending = unsafe { communicator.shared.begin_destroy(call, context) };
        let ([pause, _], timer) = (PAUSES, Timer::default());
        Ok(Destroying { ending, limit, timer, pause, _communicator: communicator })
    }
}

/// A finalized communicator that NCCL frees. (Its fields are dropped in this order.)
struct Destroying {
    ending: Ending,
    limit: Duration,
    timer: Timer,
    pause: Duration,
    /// Its options, which NCCL may read until the end.
    _communicator: Communicator,
}

impl Destroying {
    async fn complete(mut self) -> Result<()> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(result) = self.ending.wait(Duration::ZERO) {
            return Poll::Ready(result);
        }
        if self.ending.elapsed() >= self.limit {
            return Poll::Ready(Err(self.ending.timeout_error()));
        }
        let [_, longest] = PAUSES;
        self.timer.set(self.pause, context.waker());
        self.pause = longest.min(2 * self.pause);
        Poll::Pending
    }
}
