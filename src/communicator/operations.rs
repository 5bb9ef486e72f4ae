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
/// ```
/// # fn main() -> libnccl::Result<()> {
/// use libnccl::{CollectiveConfig, ReduceOp, StreamRef};
///
/// let comms = libnccl_cpu::nccl().init_all(&[0])?;
/// let mut buffer = [1.0, 2.0];
/// let few = CollectiveConfig::new().max_ctas(2);
/// comms[0].operations().with(&few).all_reduce_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of every operation: [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a buffer that is too short
/// or in the wrong memory, or a rank out of range; nothing was started then.
/// [`Error::InvalidUsage`](crate::Error::InvalidUsage) while a group is open on this thread, or after one that failed.
/// [`Error::Unsupported`](crate::Error::Unsupported) if the library is older than what is asked of it.
/// [`Error::Nccl`](crate::Error::Nccl) if NCCL cannot do it. [`Error::Timeout`](crate::Error::Timeout) and
/// [`Error::Aborted`](crate::Error::Aborted) if the communicator is aborted.
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

    /// The same, with options for each collective, which all ranks have to give alike; for an example, see
    /// [`Operations`]. Since NCCL 2.31.2.
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
    /// This communicator's operations, to be started at once; see [`Operations`].
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
                ///
                /// # Errors
                /// Those of [every operation](Operations#errors).
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
        impl Communicator {
            $(
                $(#[$documentation])*
                ///
                /// # Errors
                /// Those of [every operation](Operations#errors).
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
                ///
                /// # Errors
                /// Those of [every operation](Operations#errors).
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
    ///
    /// ```
    /// # use libnccl::{Communicator, ReduceOp, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut sums = [0; 2];
    /// comm.all_reduce(&[10, comm.rank() as i32], &mut sums, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// assert_eq!(sums, [20, 1]);
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclAllReduce")]
    #[doc(alias = "ncclAllReduceConfig")]
    collectives::all_reduce(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp
    );

    /// [`all_reduce`](Self::all_reduce) with the result in place of what was sent.
    ///
    /// ```
    /// # use libnccl::{Communicator, ReduceOp, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut buffer = [10, comm.rank() as i32];
    /// comm.all_reduce_in_place(&mut buffer, ReduceOp::Max, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, [10, 1]);
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclAllReduce")]
    collectives::all_reduce_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, op: ReduceOp);

    /// Copies `send` of rank `root` to `recv` of every rank. The count is the length of `recv`; on the root,
    /// `send` holds as many, and on the others it is ignored and may be empty.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let send: &[i32] = if comm.rank() == 0 { &[1, 2] } else { &[] };
    /// let mut recv = [0; 2];
    /// comm.broadcast(send, &mut recv, 0, StreamRef::DEFAULT)?;
    /// assert_eq!(recv, [1, 2]);
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclBroadcast")]
    #[doc(alias = "ncclBroadcastConfig")]
    collectives::broadcast(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        root: usize
    );

    /// Copies `buffer` of rank `root` to `buffer` of every other rank.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut buffer = [comm.rank() as i32 + 1; 2];
    /// comm.broadcast_in_place(&mut buffer, 1, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, [2, 2]);
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclBroadcast")]
    #[doc(alias = "ncclBcast")]
    collectives::broadcast_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, root: usize);

    /// Combines the ranks' `send` element by element; rank `root` gets the result. The count is the length of
    /// `send`; on the root, `recv` holds as many, and on the others it is ignored and may be empty.
    ///
    /// ```
    /// # use libnccl::{Communicator, ReduceOp, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut recv = vec![0; if comm.rank() == 0 { 2 } else { 0 }];
    /// comm.reduce(&[3, 4], &mut recv, ReduceOp::Prod, 0, StreamRef::DEFAULT)?;
    /// if comm.rank() == 0 {
    ///     assert_eq!(recv, [9, 16]);
    /// }
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclReduce")]
    #[doc(alias = "ncclReduceConfig")]
    collectives::reduce(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp,
        root: usize
    );

    /// [`reduce`](Self::reduce) with the result in place of what the root sent; the others' buffers stay.
    ///
    /// ```
    /// # use libnccl::{Communicator, ReduceOp, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut buffer = [3, 4];
    /// comm.reduce_in_place(&mut buffer, ReduceOp::Prod, 0, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, if comm.rank() == 0 { [9, 16] } else { [3, 4] });
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclReduce")]
    collectives::reduce_in_place(
        buffer: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp,
        root: usize
    );

    /// Every rank gets the `send` of all, in the order of the ranks. The count is the length of `send`; `recv`
    /// holds count x size.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut all = [0; 4];
    /// comm.all_gather(&[comm.rank() as i32; 2], &mut all, StreamRef::DEFAULT)?;
    /// assert_eq!(all, [0, 0, 1, 1]);
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclAllGather")]
    #[doc(alias = "ncclAllGatherConfig")]
    collectives::all_gather(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>
    );

    /// [`all_gather`](Self::all_gather) where part `rank` of the `size` equal parts of `buffer` is what is
    /// sent.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut all = [-1; 2];
    /// all[comm.rank()] = comm.rank() as i32;
    /// comm.all_gather_in_place(&mut all, StreamRef::DEFAULT)?;
    /// assert_eq!(all, [0, 1]);
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclAllGather")]
    collectives::all_gather_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>);

    /// Combines the ranks' `send` element by element; rank `i` gets part `i` of the result. The count is the
    /// length of `recv`; `send` holds count x size.
    ///
    /// ```
    /// # use libnccl::{Communicator, ReduceOp, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut part = [0];
    /// comm.reduce_scatter(&[10, 20], &mut part, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// assert_eq!(part, if comm.rank() == 0 { [20] } else { [40] });
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclReduceScatter")]
    #[doc(alias = "ncclReduceScatterConfig")]
    collectives::reduce_scatter(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp
    );

    /// [`reduce_scatter`](Self::reduce_scatter) where the result goes to part `rank` of the `size` equal parts
    /// of `buffer`; what the other parts hold afterwards is not defined.
    ///
    /// ```
    /// # use libnccl::{Communicator, ReduceOp, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut buffer = [10, 20];
    /// comm.reduce_scatter_in_place(&mut buffer, ReduceOp::Sum, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer[comm.rank()], if comm.rank() == 0 { 20 } else { 40 });
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclReduceScatter")]
    collectives::reduce_scatter_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, op: ReduceOp);

    /// Every rank sends part `i` of the `size` equal parts of `send` to rank `i`, which finds it in that part of
    /// its `recv` that has the sender's number. The length of `send` is a multiple of the size; `recv` holds as
    /// many elements.
    ///
    /// Before NCCL 2.28.3, which is the first to have it, it is made of grouped sends and receives, and then
    /// takes no options.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let send = [10, 20].map(|part| part + comm.rank() as i32);
    /// let mut recv = [0; 2];
    /// comm.all_to_all(&send, &mut recv, StreamRef::DEFAULT)?;
    /// assert_eq!(recv, if comm.rank() == 0 { [10, 11] } else { [20, 21] });
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut all = vec![0; if comm.rank() == 0 { 2 } else { 0 }];
    /// comm.gather(&[comm.rank() as i32], &mut all, 0, StreamRef::DEFAULT)?;
    /// if comm.rank() == 0 {
    ///     assert_eq!(all, [0, 1]);
    /// }
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclGather")]
    #[doc(alias = "ncclGatherConfig")]
    collectives::gather(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        root: usize
    );

    /// [`gather`](Self::gather) where the root's own part is in its place already: on the root, `buffer` is what
    /// is received, size equal parts of which part `root` is sent; on the others, it is what they send.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut buffer = if comm.rank() == 0 { vec![10, 0] } else { vec![20] };
    /// comm.gather_in_place(&mut buffer, 0, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, if comm.rank() == 0 { vec![10, 20] } else { vec![20] });
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclGather")]
    collectives::gather_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, root: usize);

    /// Rank `i` gets part `i` of the `send` of rank `root`. The count is the length of `recv`; on the root,
    /// `send` holds count x size, and on the others it is ignored and may be empty.
    ///
    /// Before NCCL 2.28.3, which is the first to have it, it is made of grouped sends and receives, and then
    /// takes no options.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let send: &[i32] = if comm.rank() == 0 { &[10, 20] } else { &[] };
    /// let mut part = [0];
    /// comm.scatter(send, &mut part, 0, StreamRef::DEFAULT)?;
    /// assert_eq!(part, if comm.rank() == 0 { [10] } else { [20] });
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclScatter")]
    #[doc(alias = "ncclScatterConfig")]
    collectives::scatter(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        root: usize
    );

    /// [`scatter`](Self::scatter) where the root's own part stays in its place: on the root, `buffer` is what is
    /// sent, size equal parts; on the others, it receives.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut buffer = if comm.rank() == 0 { vec![10, 20] } else { vec![0] };
    /// comm.scatter_in_place(&mut buffer, 0, StreamRef::DEFAULT)?;
    /// assert_eq!(buffer, if comm.rank() == 0 { vec![10, 20] } else { vec![20] });
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclScatter")]
    collectives::scatter_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, root: usize);

    /// Sends `buffer` to rank `peer`, which receives as many elements. A rank that sends *and* receives does
    /// both in one group, or it may wait for a peer that does the same.
    ///
    /// ```
    /// # use libnccl::{Communicator, Result, StreamRef};
    /// # fn each(comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// if comm.rank() == 0 {
    ///     comm.send(&[1, 2], 1, StreamRef::DEFAULT)?;
    /// } else {
    ///     let mut buffer = [0; 2];
    ///     comm.recv(&mut buffer, 0, StreamRef::DEFAULT)?;
    ///     assert_eq!(buffer, [1, 2]);
    /// }
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let comms = libnccl_cpu::nccl().init_all(&[0, 1])?;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(|| each(comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclSend")]
    point_to_point::send(buffer: impl Into<DeviceSlice<'scope, T>>, peer: usize);

    /// Receives `buffer` from rank `peer`, which sends as many elements.
    ///
    /// ```
    /// # use libnccl::{Communicator, Nccl, Result, StreamRef};
    /// # fn each(nccl: &Nccl, comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let (mine, mut theirs, peer) = ([comm.rank() as i32], [-1], 1 - comm.rank());
    /// nccl.group(|g| {
    ///     g.send(&comm, &mine, peer, StreamRef::DEFAULT)?;
    ///     g.recv(&comm, &mut theirs, peer, StreamRef::DEFAULT)
    /// })?;
    /// assert_eq!(theirs, [peer as i32]);
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let nccl = libnccl_cpu::nccl();
    /// # let comms = nccl.init_all(&[0, 1])?;
    /// # let nccl = &nccl;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(move || each(nccl, comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ncclRecv")]
    point_to_point::recv(buffer: impl Into<DeviceSliceMut<'scope, T>>, peer: usize);

    /// Writes `local`, which is a part of a window of this rank, to that place in the window of rank `peer`, and
    /// then raises `signal` there; the peer learns of it by [`wait_signal`](Communicator::wait_signal). Since NCCL
    /// 2.29.2.
    ///
    /// ```
    /// # use libnccl::{Communicator, Nccl, Result, Signal, StreamRef, WaitSignal, WindowFlags};
    /// # fn each(nccl: &Nccl, comm: Communicator) -> Result<()> {
    /// // On each of two ranks:
    /// let mut buffer = nccl.alloc::<f32>(1024)?;
    /// let window = comm.register_window(&mut buffer, WindowFlags::COLL_SYMMETRIC)?;
    /// // The first half of this rank's window goes to the second half of the other's.
    /// let (peer, signal) = (1 - comm.rank(), Signal::default());
    /// let first_half = buffer.get(..512).expect("it has 1024 elements");
    /// comm.put_signal(first_half, peer, window.at(512), signal, StreamRef::DEFAULT)?;
    /// comm.wait_signal(&[WaitSignal { count: 1, peer: peer as u32, signal }], StreamRef::DEFAULT)?;
    /// # comm.barrier(StreamRef::DEFAULT)?;
    /// # Ok(())
    /// # }
    /// # fn main() -> Result<()> {
    /// # let nccl = libnccl_cpu::nccl();
    /// # let comms = nccl.init_all(&[0, 1])?;
    /// # let nccl = &nccl;
    /// # std::thread::scope(|s| comms.into_iter().for_each(|comm| drop(s.spawn(move || each(nccl, comm).unwrap()))));
    /// # Ok(())
    /// # }
    /// ```
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
