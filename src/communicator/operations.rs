//! The operations' public face: each is declared here once, and is a method of [`Operations`], of
//! [`Communicator`], where it is started at once, and of [`Group`], where it is started with the others.

use super::collectives::{self, Operator};
use super::{Signal, WindowOffset, one_sided, point_to_point};
use crate::group::Members;
use crate::{
    CollectiveConfig, Communicator, DeviceSlice, DeviceSliceMut, Element, Group, ReduceOp, Result,
    ResultCode, StreamRef,
};

/// The operations of a communicator, and how they are to be started: at once, or with a group; with options of
/// their own, or without.
///
/// ```no_run
/// # fn main() -> libnccl::Result<()> {
/// # let nccl = libnccl::Nccl::load()?;
/// # let comm = nccl.init_rank(8, 0, &nccl.unique_id()?)?;
/// # let mut buffer: libnccl::DeviceSliceMut<'_, f32> = todo!();
/// use libnccl::{CollectiveConfig, ReduceOp, StreamRef};
///
/// let few = CollectiveConfig::new().max_ctas(2);
/// comm.operations().with(&few).all_reduce_in_place(buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Operations<'scope> {
    pub(super) communicator: &'scope Communicator,
    pub(super) group: Option<&'scope Members<'scope>>,
    pub(super) config: Option<&'scope CollectiveConfig>,
}

impl<'scope> Operations<'scope> {
    #[inline]
    pub(crate) fn new(communicator: &'scope Communicator, group: Option<&'scope Members<'scope>>) -> Self {
        Self { communicator, group, config: None }
    }

    /// The same, with options for each collective, which all ranks have to give alike. Since NCCL 2.31.2.
    #[must_use]
    pub fn with(self, config: &'scope CollectiveConfig) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Comes before the call. `true` if it is the communicator's first in a group.
    #[inline(always)]
    pub(super) fn begin(self, operation: &'static str) -> Result<bool> {
        match self.group {
            None => self.communicator.begin(operation).map(|()| false),
            Some(group) => group.begin(self.communicator, operation),
        }
    }

    /// Comes after the call, with what [`begin`](Self::begin) and the call have answered.
    #[inline(always)]
    pub(super) fn finish(
        self,
        operation: &'static str,
        joined: bool,
        result: Result<ResultCode>,
    ) -> Result<()> {
        match self.group {
            None => self.communicator.finish(operation, result),
            Some(group) => group.finish(self.communicator, joined, result),
        }
    }

    /// Both, around a call. (A closure is not always inlined; where every instruction counts, it is done by
    /// hand.)
    pub(super) fn issue(
        self,
        operation: &'static str,
        enqueue: impl FnOnce() -> Result<ResultCode>,
    ) -> Result<()> {
        let joined = self.begin(operation)?;
        let result = enqueue();
        self.finish(operation, joined, result)
    }
}

impl Communicator {
    /// This communicator's operations, to be started at once; see [`Operations::with`].
    #[inline]
    #[must_use]
    pub fn operations(&self) -> Operations<'_> {
        Operations::new(self, None)
    }
}

macro_rules! operations {
    ($(
        $(#[$documentation:meta])*
        $module:ident::$name:ident($($argument:ident: $type:ty),*);
    )*) => {
        impl<'scope> Operations<'scope> {
            $(
                $(#[$documentation])*
                #[allow(clippy::missing_errors_doc)]
                #[inline(always)]
                pub fn $name<T: Element>(
                    self,
                    $($argument: $type,)*
                    stream: impl Into<StreamRef<'scope>>,
                ) -> Result<()> {
                    // Before NCCL is entered: the conversions are other crates' code.
                    $(let $argument = $argument.into();)*
                    let stream = stream.into();
                    let joined = self.begin(stringify!($name))?;
                    let result = $module::$name(self, $($argument,)* stream);
                    self.finish(stringify!($name), joined, result)
                }
            )*
        }

        /// Operations.
        ///
        /// All ranks call the same ones in the same order. They return when the work is enqueued on `stream`;
        /// on the CPU implementation, when it is done. Counts are elements, not bytes. Every buffer may be
        /// longer than needed, but for those that set the count.
        ///
        /// # Errors
        /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a buffer that is too short or in the
        /// wrong memory, or a rank out of range; nothing was started then.
        /// [`Error::InvalidUsage`](crate::Error::InvalidUsage) while a group is open on this thread, or after
        /// one that failed. [`Error::Unsupported`](crate::Error::Unsupported) if the library is older than what
        /// is asked of it. [`Error::Nccl`](crate::Error::Nccl) if NCCL cannot do it.
        impl Communicator {
            $(
                $(#[$documentation])*
                #[allow(clippy::missing_errors_doc)]
                #[inline(always)]
                pub fn $name<'scope, T: Element>(
                    &'scope self,
                    $($argument: $type,)*
                    stream: impl Into<StreamRef<'scope>>,
                ) -> Result<()> {
                    self.operations().$name($($argument,)* stream)
                }
            )*
        }

        /// Operations, as those of [`Communicator`], to be started when the group ends.
        impl<'scope> Group<'scope, '_> {
            $(
                $(#[$documentation])*
                #[allow(clippy::missing_errors_doc)]
                #[inline(always)]
                pub fn $name<T: Element>(
                    &'scope self,
                    communicator: &'scope Communicator,
                    $($argument: $type,)*
                    stream: impl Into<StreamRef<'scope>>,
                ) -> Result<()> {
                    self.on(communicator).$name($($argument,)* stream)
                }
            )*
        }
    };
}

operations! {
    /// Combines the ranks' `send` element by element; every rank gets the result. The count is the length of
    /// `send`; `recv` holds as many.
    #[doc(alias = "ncclAllReduce")]
    #[doc(alias = "ncclAllReduceConfig")]
    collectives::all_reduce(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp
    );

    /// [`all_reduce`](Self::all_reduce) with the result in place of what was sent.
    #[doc(alias = "ncclAllReduce")]
    collectives::all_reduce_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, op: ReduceOp);

    /// Copies `send` of rank `root` to `recv` of every rank. The count is the length of `recv`; on the root,
    /// `send` holds as many, and on the others it is ignored and may be empty.
    #[doc(alias = "ncclBroadcast")]
    #[doc(alias = "ncclBroadcastConfig")]
    collectives::broadcast(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        root: usize
    );

    /// Copies `buffer` of rank `root` to `buffer` of every other rank.
    #[doc(alias = "ncclBroadcast")]
    #[doc(alias = "ncclBcast")]
    collectives::broadcast_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, root: usize);

    /// Combines the ranks' `send` element by element; rank `root` gets the result. The count is the length of
    /// `send`; on the root, `recv` holds as many, and on the others it is ignored and may be empty.
    #[doc(alias = "ncclReduce")]
    #[doc(alias = "ncclReduceConfig")]
    collectives::reduce(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp,
        root: usize
    );

    /// [`reduce`](Self::reduce) with the result in place of what the root sent; the others' buffers stay.
    #[doc(alias = "ncclReduce")]
    collectives::reduce_in_place(
        buffer: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp,
        root: usize
    );

    /// Every rank gets the `send` of all, in the order of the ranks. The count is the length of `send`; `recv`
    /// holds count x size.
    #[doc(alias = "ncclAllGather")]
    #[doc(alias = "ncclAllGatherConfig")]
    collectives::all_gather(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>
    );

    /// [`all_gather`](Self::all_gather) where part `rank` of the `size` equal parts of `buffer` is what is
    /// sent.
    #[doc(alias = "ncclAllGather")]
    collectives::all_gather_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>);

    /// Combines the ranks' `send` element by element; rank `i` gets part `i` of the result. The count is the
    /// length of `recv`; `send` holds count x size.
    #[doc(alias = "ncclReduceScatter")]
    #[doc(alias = "ncclReduceScatterConfig")]
    collectives::reduce_scatter(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp
    );

    /// [`reduce_scatter`](Self::reduce_scatter) where the result goes to part `rank` of the `size` equal parts
    /// of `buffer`; what the other parts hold afterwards is not defined.
    #[doc(alias = "ncclReduceScatter")]
    collectives::reduce_scatter_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, op: ReduceOp);

    /// Every rank sends part `i` of the `size` equal parts of `send` to rank `i`, which finds it in that part of
    /// its `recv` that has the sender's number. The length of `send` is a multiple of the size; `recv` holds as
    /// many elements.
    ///
    /// Before NCCL 2.28.3, which is the first to have it, it is made of grouped sends and receives, and then
    /// takes no options.
    #[doc(alias = "ncclAlltoAll")]
    #[doc(alias = "ncclAlltoAllConfig")]
    collectives::all_to_all(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>
    );

    /// Rank `root` gets the `send` of all, in the order of the ranks. The count is the length of `send`; on the
    /// root, `recv` holds count x size, and on the others it is ignored and may be empty.
    ///
    /// Before NCCL 2.28.3, which is the first to have it, it is made of grouped sends and receives, and then
    /// takes no options.
    #[doc(alias = "ncclGather")]
    #[doc(alias = "ncclGatherConfig")]
    collectives::gather(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        root: usize
    );

    /// Rank `i` gets part `i` of the `send` of rank `root`. The count is the length of `recv`; on the root,
    /// `send` holds count x size, and on the others it is ignored and may be empty.
    ///
    /// Before NCCL 2.28.3, which is the first to have it, it is made of grouped sends and receives, and then
    /// takes no options.
    #[doc(alias = "ncclScatter")]
    #[doc(alias = "ncclScatterConfig")]
    collectives::scatter(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        root: usize
    );

    /// Sends `buffer` to rank `peer`, which receives as many elements. A rank that sends *and* receives does
    /// both in one group, or it may wait for a peer that does the same.
    #[doc(alias = "ncclSend")]
    point_to_point::send(buffer: impl Into<DeviceSlice<'scope, T>>, peer: usize);

    /// Receives `buffer` from rank `peer`, which sends as many elements.
    #[doc(alias = "ncclRecv")]
    point_to_point::recv(buffer: impl Into<DeviceSliceMut<'scope, T>>, peer: usize);

    /// Writes `local`, which is a part of a window of this rank, to that place in the window of rank `peer`, and
    /// then raises `signal` there; the peer learns of it by [`wait_signal`](Communicator::wait_signal). Since NCCL
    /// 2.29.2.
    #[doc(alias = "ncclPutSignal")]
    one_sided::put_signal(
        local: impl Into<DeviceSlice<'scope, T>>,
        peer: usize,
        place: WindowOffset<'scope, T>,
        signal: Signal
    );
}

impl From<ReduceOp> for Operator {
    #[inline]
    fn from(op: ReduceOp) -> Self {
        Self(op.as_raw())
    }
}
