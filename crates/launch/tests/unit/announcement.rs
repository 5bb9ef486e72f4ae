use super::{Announcement, MAX_BYTES};
use libnccl_test_support::random_inputs::{Random, inputs};

fn announcement() -> Announcement {
    Announcement {
        nonce: u128::from_be_bytes([0xa5; 16]),
        port: 4711,
        hosts: vec!["node1".into(), "fe80::1%eth0".into()],
    }
}

#[test]
fn text_round_trips_and_cut_or_changed_text_is_an_error() {
    let text = announcement().to_string();
    assert_eq!(Announcement::parse(text.as_bytes()), Ok(announcement()));
    for end in 0..text.len() {
        Announcement::parse(&text.as_bytes()[..end]).unwrap_err();
    }
    let many_hosts = format!("{}end\n", "host h\n".repeat(7));
    for (from, to) in [
        ("port 4711", "port 0"),
        ("libnccl", "libnccI"),
        ("nonce a", "nonce +"),
        ("node1", "no de"),
        ("end\n", &many_hosts),
    ] {
        Announcement::parse(text.replace(from, to).as_bytes()).unwrap_err();
    }
    Announcement::parse(&vec![b'x'; MAX_BYTES + 1]).unwrap_err();
    Announcement::parse(&[0xff; 8]).unwrap_err();
    // A text with more hosts than are parsed has the first.
    let many = Announcement { hosts: vec!["h".repeat(253); 20], ..announcement() };
    assert_eq!(Announcement::parse(many.to_string().as_bytes()).unwrap().hosts.len(), 8);
}

#[test]
fn random_bytes_are_parsed_or_refused() {
    let mut random = Random(12);
    for _ in inputs(20_000) {
        let mut bytes = announcement().to_string().into_bytes();
        random.change(&mut bytes);
        if let Ok(parsed) = Announcement::parse(&bytes) {
            assert!(parsed.port > 0 && parsed.hosts.len() <= 8);
            assert_eq!(Announcement::parse(parsed.to_string().as_bytes()), Ok(parsed));
        }
    }
}
