use std::process::Command;

use rustix::net::socketpair;

use super::*;

#[test]
fn error_is_decoded_from_any_bytes() {
    let decode = |number: u32, text: &[u8]| match Message::from_bytes(&[&number.to_ne_bytes(), text].concat())
    {
        Some(Message::Failed(Error { code, text })) => (code.0, text, false),
        Some(Message::Left(Error { code, text })) => (code.0, text, true),
        other => panic!("{other:?}"),
    };
    let remote = ncclResult_t::ncclRemoteError.0;
    let error = Error::remote("a".repeat(2000));
    let bytes = Message::Left(error).to_bytes();
    assert_eq!(bytes.len(), MAX_MESSAGE);
    assert!(matches!(Message::from_bytes(&bytes), Some(Message::Left(error)) if error.text.len() == 1020));
    assert_eq!(decode(remote, b"a\nb"), (remote, "a b".into(), false));
    assert_eq!(decode(remote | LEFT, b"a\xffb"), (remote, "a\u{fffd}b".into(), true));
    assert!(decode(remote, b"\n").1.contains("without a text"));
    let code = ncclResult_t::ncclNumResults.0;
    let text = format!("another rank sent result code {code} at the rendezvous");
    assert_eq!(decode(code, b"text"), (remote, text, false));
    assert!(Message::from_bytes(&[0; 3]).is_none());
}

#[test]
fn departed_rank_is_not_reported_dead() {
    let text = |process| gone("rank 3", process).text;
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let process = Process::from_pid(child.id().into()).unwrap();
    assert!(text(Some(process)).starts_with("rank 3 left before all ranks had joined: "));
    assert!(text(Process::current().ok()).starts_with("rank 3 left before all ranks had joined: "));
    // The process ends while `gone` waits, as it would after the end of its connection.
    let killed = std::thread::spawn(move || {
        std::thread::sleep(LIVENESS_INTERVAL / 4);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    assert_eq!(text(Some(process)), "rank 3 exited before all ranks had joined: its process has ended");
    killed.join().unwrap();
    assert_eq!(text(Some(process)), "rank 3 exited before all ranks had joined: its process has ended");
    assert_eq!(text(None), "rank 3 exited before all ranks had joined: its call or its process has ended");
}

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET_FLAGS, None).unwrap()
}

#[test]
fn last_message_of_a_root_with_an_unread_hello_is_received() {
    let (root, other) = pair();
    rustix::net::send(&root, b"unread", SendFlags::NOSIGNAL).unwrap();
    send(&other, &Message::Ready).unwrap();
    drop(other);
    assert!(matches!(receive(&root, None, &|| Ok(())), Ok(Some((Message::Ready, None)))));
    assert!(matches!(receive(&root, None, &|| Ok(())), Ok(None)));
}
