//! The events of which observers are told.

use std::fmt;
use std::panic::Location;

use super::call_word::CallWord;
use crate::data_type::DataType;
use crate::error::Error;
use crate::observer::{Membership, Operation};

/// An operation that is about to start, or has joined a group; see [`Observer`](crate::observer::Observer).
#[derive(Clone, Copy)]
pub struct OperationStart<'a> {
    communicator: &'a Membership,
    pub(super) number: u64,
    /// 0 outside a group.
    pub(super) group: u64,
    pub(super) call: CallWord,
    elements: [usize; 2],
    stream: usize,
    site: Option<&'static Location<'static>>,
}

impl<'a> OperationStart<'a> {
    /// Creates the start of an operation with a call, without a number.
    #[inline]
    pub(crate) fn of_call(
        communicator: &'a Membership,
        call: CallWord,
        elements: [usize; 2],
        stream: usize,
        site: &'static Location<'static>,
    ) -> Self {
        Self { communicator, number: 0, group: 0, call, elements, stream, site: Some(site) }
    }

    /// Creates the start of an operation without elements, on the default stream, for code that tells an observer of calls that
    /// it intercepts.
    #[inline]
    #[must_use]
    pub fn new(communicator: &'a Membership, operation: &Operation, number: u64) -> Self {
        let call = CallWord::new(operation, None, [None; 2]);
        Self { communicator, number, group: 0, call, elements: [0; 2], stream: 0, site: None }
    }

    /// Sets the type of the elements, if it is a valid one, and the numbers of those that this rank sends and receives.
    #[inline]
    #[must_use]
    pub fn elements(mut self, data_type: Option<DataType>, sent: usize, received: usize) -> Self {
        self.elements = [sent, received];
        self.with_call(data_type, self.call.ranks())
    }

    /// Sets the root, or the rank at the other end, and the rank from which an exchange receives.
    #[inline]
    #[must_use]
    pub fn ranks(self, peer: Option<usize>, source: Option<usize>) -> Self {
        self.with_call(self.data_type(), [peer, source])
    }

    #[inline]
    fn with_call(mut self, data_type: Option<DataType>, ranks: [Option<usize>; 2]) -> Self {
        self.call = CallWord::new(self.operation(), data_type, ranks);
        if self.group > 0 { self.in_group(self.group) } else { self }
    }

    /// Sets the address of the stream.
    #[inline]
    #[must_use]
    pub fn on_stream(mut self, stream: usize) -> Self {
        self.stream = stream;
        self
    }

    /// Sets the place of the call in the program.
    #[must_use]
    pub fn called_at(mut self, site: &'static Location<'static>) -> Self {
        self.site = Some(site);
        self
    }

    /// Sets the number of the first operation of its communicator in the group that is open.
    #[inline]
    #[must_use]
    pub fn in_group(mut self, first: u64) -> Self {
        self.group = first;
        self.call = self.call.in_group(first == self.number);
        self
    }

    /// Returns the communicator.
    #[must_use]
    pub fn communicator(&self) -> &'a Membership {
        self.communicator
    }

    /// Returns the operation.
    #[must_use]
    pub fn operation(&self) -> &'static Operation {
        self.call.operation()
    }

    /// Returns the number among the operations of the communicator, from 1 for the first of which its observers were told.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of the first operation of this communicator in the group; `None` outside a group.
    #[must_use]
    pub fn group(&self) -> Option<u64> {
        (self.group > 0).then_some(self.group)
    }

    /// Returns the type of the elements, if there are any.
    #[must_use]
    pub fn data_type(&self) -> Option<DataType> {
        self.call.data_type()
    }

    /// Returns the number of elements that this rank sends; for a collective, as many as it would if its buffers had the
    /// length that is needed.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.elements[0]
    }

    /// Returns the number of elements that this rank receives, or would on the root.
    #[must_use]
    pub fn received(&self) -> usize {
        self.elements[1]
    }

    /// Returns the number of bytes that this rank sends.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.bytes(self.sent())
    }

    /// Returns the number of bytes that this rank receives.
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.bytes(self.received())
    }

    fn bytes(&self, elements: usize) -> u64 {
        self.data_type().map_or(0, |data_type| (elements as u64).saturating_mul(data_type.size() as u64))
    }

    /// Returns the root, or the rank at the other end; of an exchange, the destination.
    #[must_use]
    pub fn peer(&self) -> Option<usize> {
        self.call.ranks()[0]
    }

    /// Returns the rank from which an exchange receives.
    #[must_use]
    pub fn source(&self) -> Option<usize> {
        self.call.ranks()[1]
    }

    /// Returns the address of the stream, 0 for the default stream.
    #[must_use]
    pub fn stream(&self) -> usize {
        self.stream
    }

    /// Returns the place of the call in the program, if it is known.
    #[must_use]
    pub fn site(&self) -> Option<&'static Location<'static>> {
        self.site
    }

    /// Returns what the methods above return of the operation, in one word.
    #[inline]
    #[must_use]
    pub fn call(&self) -> CallWord {
        self.call
    }
}

impl fmt::Debug for OperationStart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationStart")
            .field("operation", &self.operation().name)
            .field("number", &self.number)
            .field("communicator", self.communicator)
            .finish_non_exhaustive()
    }
}

/// The end of the call of an operation, or of a group with operations of a communicator; see
/// [`Observer`](crate::observer::Observer).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct OperationEnd<'a> {
    /// The communicator.
    pub communicator: &'a Membership,
    /// The number of the operation, or of the first one in the group.
    pub first: u64,
    /// The number of the operation, or of the last one in the group.
    pub last: u64,
    /// The result of the call. On a GPU, the work may go on after it, and is known to be done when an event
    /// [`StreamCompleted`](CommunicatorEvent::StreamCompleted) says so.
    pub result: Result<(), &'a Error>,
}

impl<'a> OperationEnd<'a> {
    /// Creates it, for code that tells observers of calls that it intercepts.
    #[inline]
    #[must_use]
    pub const fn new(
        communicator: &'a Membership,
        [first, last]: [u64; 2],
        result: Result<(), &'a Error>,
    ) -> Self {
        Self { communicator, first, last, result }
    }
}

/// A change of a communicator; see [`Observer`](crate::observer::Observer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommunicatorEvent {
    /// All ranks have joined it. One that was split from another has a [parent](Membership::parent).
    Created,
    /// [`synchronize`](crate::communicator::Communicator::synchronize) has found that the work on the stream of this address is done.
    StreamCompleted(usize),
    /// A group in which it takes part has failed: nothing but its end is possible any more.
    Failed,
    /// Someone has [found](crate::communicator::AbortHandle::report_stall) it in the same call for too long.
    Stalled,
    /// A wait has taken longer than its limit. It is aborted after this.
    TimedOut,
    /// It is healthy, and its buffers are on a GPU, and it is dropped instead of destroyed: with its unfinished work, it is
    /// aborted after this.
    Discarded,
    /// It is aborted. The work in progress ends after this.
    Aborted,
    /// It is destroyed, or left to other code, which ends it.
    Ended,
}
