//! The operations' public face: each stands here once, and is a method of [`Communicator`], where it is
//! started at once, and of [`Group`], where it is started with the others.

use super::{collectives, point_to_point};
use crate::{Communicator, DeviceSlice, DeviceSliceMut, Element, Group, ReduceOp, Result, StreamRef};

macro_rules! operations {
    ($(
        $(#[$documentation:meta])*
        $module:ident::$name:ident($($argument:ident: $type:ty),*);
    )*) => {
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
        /// one that failed. [`Error::Nccl`](crate::Error::Nccl) if NCCL cannot do it.
        impl Communicator {
            $(
                $(#[$documentation])*
                #[allow(clippy::missing_errors_doc)]
                pub fn $name<'scope, T: Element>(
                    &'scope self,
                    $($argument: $type,)*
                    stream: impl Into<StreamRef<'scope>>,
                ) -> Result<()> {
                    self.immediate(stringify!($name), || {
                        $module::$name(self, $($argument.into(),)* stream.into())
                    })
                }
            )*
        }

        /// Operations, as those of [`Communicator`], to be started when the group ends.
        impl<'scope> Group<'scope, '_> {
            $(
                $(#[$documentation])*
                #[allow(clippy::missing_errors_doc)]
                pub fn $name<T: Element>(
                    &'scope self,
                    communicator: &'scope Communicator,
                    $($argument: $type,)*
                    stream: impl Into<StreamRef<'scope>>,
                ) -> Result<()> {
                    self.queue(communicator, stringify!($name), || {
                        $module::$name(communicator, $($argument.into(),)* stream.into())
                    })
                }
            )*
        }
    };
}

operations! {
    /// Combines the ranks' `send` element by element; every rank gets the result. The count is the length of
    /// `send`; `recv` holds as many.
    #[doc(alias = "ncclAllReduce")]
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
    collectives::reduce_scatter(
        send: impl Into<DeviceSlice<'scope, T>>,
        recv: impl Into<DeviceSliceMut<'scope, T>>,
        op: ReduceOp
    );

    /// [`reduce_scatter`](Self::reduce_scatter) where the result goes to part `rank` of the `size` equal parts
    /// of `buffer`; what the other parts hold afterwards is not defined.
    #[doc(alias = "ncclReduceScatter")]
    collectives::reduce_scatter_in_place(buffer: impl Into<DeviceSliceMut<'scope, T>>, op: ReduceOp);

    /// Sends `buffer` to rank `peer`, which receives as many elements. A rank that sends *and* receives does
    /// both in one group, or it may wait for a peer that does the same.
    #[doc(alias = "ncclSend")]
    point_to_point::send(buffer: impl Into<DeviceSlice<'scope, T>>, peer: usize);

    /// Receives `buffer` from rank `peer`, which sends as many elements.
    #[doc(alias = "ncclRecv")]
    point_to_point::recv(buffer: impl Into<DeviceSliceMut<'scope, T>>, peer: usize);
}
