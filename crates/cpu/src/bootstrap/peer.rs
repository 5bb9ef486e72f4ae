//! A peer: a rank that joins at the rendezvous of another, the root.

use std::cell::Cell;
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libnccl::sys::ncclResult_t;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg, send,
};

use crate::bootstrap::hello::Hello;
use crate::bootstrap::join_context::JoinContext;
use crate::bootstrap::message::{MAX_MESSAGE, READY, aborted_rank, cancelled, gone};
use crate::bootstrap::shared_join::{CreatedState, FirstRank};
use crate::bootstrap::socket::{POLL_INTERVAL, is_same_user, pid_of, receive, wait};
use crate::diag::error::{Error, Result};
use crate::diag::finding::Finding;
use crate::diag::report;
use crate::diag::settings::{TIMEOUT, WARN_AFTER};
use crate::shm::process::Process;
use crate::shm::shared_state::SharedState;

/// The time that the root has to tell its peers that it has given up waiting.
const ROOT_FIRST: Duration = Duration::from_secs(1);

/// The reason for which a peer could not join.
#[derive(Debug, thiserror::Error)]
pub(super) enum JoinError {
    /// The root has left, and nobody tells the ranks that come later.
    #[error(transparent)]
    RootGone(Error),
    #[error(transparent)]
    Failed(#[from] Error),
}

impl JoinError {
    /// Returns the error of a root that ended the connection without a message.
    fn root_gone(process: Option<Process>) -> Self {
        Self::RootGone(gone(
            &format!("the root of the id, the rank that came first{},", describe(process)),
            process,
        ))
    }
}

/// Joins at the root's rendezvous, with the other ranks of this process.
pub(super) fn join(
    root: &Arc<OwnedFd>,
    hello: Hello,
    first: &FirstRank,
    context: &JoinContext<'_>,
) -> Result<Arc<SharedState>, JoinError> {
    if !is_same_user(root) {
        let error = Error::system("the rendezvous socket belongs to another user", Errno::ACCESS);
        return Err(error.into());
    }
    // The root's answer shows whether it is still there.
    let _ = send(root, &hello.to_bytes(), SendFlags::NOSIGNAL);
    first.share(root, hello);
    let process = process_of(root)?;
    let (began, is_reported) = (Instant::now(), Cell::new(false));
    let check_cancelled = || {
        (context.check_cancelled)()?;
        check_root(process, hello, context.name, began.elapsed(), &is_reported)
    };
    (context.waits_for)(format!(
        "rank {} of {} waits for the root of its id, the rank that came first{}, which waits for the others",
        hello.rank,
        hello.ranks,
        describe(process)
    ));
    let context = &JoinContext { check_cancelled: &check_cancelled, parent: None, ..*context };
    let file = receive_from_root(root, process, context)?
        .ok_or_else(|| Error::internal("the rendezvous root sent no shared memory"))?;
    let ranks = first.complete();
    let state = match CreatedState::find(hello.secret) {
        Some(state) => state,
        None => Arc::new(SharedState::open(file, hello.ranks)?),
    };
    let _ = send(root, READY, SendFlags::NOSIGNAL);
    // Other ranks may use the shared state already.
    receive_from_root(root, process, context)
        .inspect_err(|_| ranks.into_iter().for_each(|rank| state.depart(rank)))?;
    Ok(state)
}

/// Reports the wait for the root once it has taken long, and gives it up at the limit.
fn check_root(
    process: Option<Process>,
    hello: Hello,
    name: &str,
    waited: Duration,
    is_reported: &Cell<bool>,
) -> Result {
    // The root, which knows what ranks are missing, gives up first.
    let is_late = TIMEOUT.is_some_and(|limit| waited >= limit + ROOT_FIRST);
    if !is_late && (is_reported.get() || WARN_AFTER.is_none_or(|limit| waited < limit)) {
        return Ok(());
    }
    is_reported.set(true);
    let Hello { rank, ranks, .. } = hello;
    let condition = process.and_then(|process| process.condition());
    let does = condition.unwrap_or("waits for the ranks that are missing and reports them");
    let text = format!(
        "after {:.1} s, in {name}, rank {rank} of {ranks} still waits for the root of its id, the rank that came first{}, \
         which {does}",
        waited.as_secs_f64(),
        describe(process)
    );
    report::report(Finding::LateRank, rank, &text);
    if is_late { Err(Error::remote(format!("{text} (LIBNCCL_CPU_TIMEOUT)"))) } else { Ok(()) }
}

fn describe(process: Option<Process>) -> String {
    process.map_or_else(String::new, |process| format!(" (process {})", process.pid))
}

/// Receives the root's next message: success, perhaps with a file, or an error.
fn receive_from_root(
    root: &OwnedFd,
    process: Option<Process>,
    context: &JoinContext<'_>,
) -> Result<Option<OwnedFd>, JoinError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; MAX_MESSAGE];
    let received = receive(root, process, context, || {
        recvmsg(root, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let length = match received? {
        Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
            // The process has no file descriptor left.
            return Err(Error::system("the ranks' shared memory cannot be received", Errno::MFILE).into());
        }
        Ok(message) => message.bytes,
        Err(Errno::CONNRESET) => return Err(JoinError::root_gone(process)),
        Err(error) => return Err(Error::system("receiving from the rendezvous root failed", error).into()),
    };
    if let Some(rank) = aborted_rank(&bytes[..length]) {
        return Err(JoinError::RootGone(cancelled(rank)));
    }
    let (code, text) = bytes[..length].split_first_chunk().ok_or_else(|| JoinError::root_gone(process))?;
    let code = ncclResult_t(u32::from_ne_bytes(*code));
    if code != ncclResult_t::ncclSuccess {
        if code.0 >= ncclResult_t::ncclNumResults.0 || code == ncclResult_t::ncclInProgress {
            return Err(Error::remote(format!("the rendezvous root sent result code {}", code.0)).into());
        }
        let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
        let text =
            if text.trim().is_empty() { "the rendezvous root sent an error without a text" } else { &text };
        return Err(JoinError::Failed(Error { code, text: text.into() }));
    }
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.next().and_then(|mut files| files.next()))
}

/// Returns `true` if there is a root that accepts this rank. The socket of one that has died may exist a little longer.
pub(super) fn is_accepted(root: &OwnedFd, hello: Hello) -> bool {
    let _ = send(root, &hello.to_bytes(), SendFlags::NOSIGNAL);
    for _ in 0..10 {
        let _ = wait(&mut [PollFd::new(root, PollFlags::IN)], POLL_INTERVAL);
        match recv(root, &mut [0; MAX_MESSAGE], RecvFlags::empty()) {
            Err(Errno::AGAIN) => {}
            received => return received.is_ok(),
        }
    }
    // It is there and waits for other ranks.
    true
}

/// Returns the process at the other end, where that can be determined.
fn process_of(root: &OwnedFd) -> Result<Option<Process>, JoinError> {
    match Process::from_pid(pid_of(root)?) {
        Ok(process) => Ok(Some(process)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(JoinError::root_gone(None)),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, socketpair};

    use super::*;
    use crate::bootstrap::socket::FLAGS;

    #[test]
    fn last_message_of_a_root_that_left_a_hello_unread_is_received() {
        let context = JoinContext { name: "", check_cancelled: &|| Ok(()), waits_for: &drop, parent: None };
        let (root, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
        send(&root, b"unread", SendFlags::NOSIGNAL).unwrap();
        send(&other, &ncclResult_t::ncclSuccess.0.to_ne_bytes(), SendFlags::NOSIGNAL).unwrap();
        drop(other);
        assert!(matches!(receive_from_root(&root, None, &context), Ok(None)));
        assert!(matches!(receive_from_root(&root, None, &context), Err(JoinError::RootGone(_))));
    }

    #[test]
    fn last_message_of_a_root_that_hangs_up_is_received() {
        let context = JoinContext { name: "", check_cancelled: &|| Ok(()), waits_for: &drop, parent: None };
        for round in 0..5000 {
            let (root, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
            let received = std::thread::scope(|scope| {
                scope.spawn(move || {
                    send(&other, &ncclResult_t::ncclSuccess.0.to_ne_bytes(), SendFlags::NOSIGNAL).unwrap();
                });
                receive_from_root(&root, None, &context)
            });
            assert!(matches!(received, Ok(None)), "round {round}");
        }
    }
}
