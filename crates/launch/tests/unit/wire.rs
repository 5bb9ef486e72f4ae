use super::*;
use libnccl_test_support::random_inputs::{Random, inputs};

fn messages() -> Vec<Message> {
    let hello = Hello {
        job: 1,
        root_nonce: u128::MAX,
        nonce: 3,
        rank: 4,
        size: 5,
        wait: Duration::from_millis(6),
        name: Name::new("two words"),
    };
    vec![
        Message::Hello(Hello { name: Name::ANY, ..hello.clone() }),
        Message::Hello(hello),
        Message::Accepted,
        Message::Refused { is_final: false, reason: "it is of another job".into() },
        Message::Refused { is_final: true, reason: "rank 0 expects 2 ranks".into() },
        Message::Id(UniqueId::from_bytes([7; 128])),
        Message::Begun,
        Message::Failed(2, "no library:\n  not found".into()),
        Message::Missing(vec![1, 3], 2),
        Message::Missing((1..=32).collect(), 1000),
        Message::Missing(vec![], 0),
    ]
}

#[test]
fn messages_round_trip() {
    for message in messages() {
        assert_eq!(Message::parse(&message.to_string()), Some(message));
    }
}

#[test]
fn reasons_are_cut_and_printable() {
    let received = |reason: &str| match Message::parse(&Message::Failed(1, reason.into()).to_string()) {
        Some(Message::Failed(1, reason)) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(received(&"x".repeat(REASON + 1)), "x".repeat(REASON - 3) + "...");
    assert_eq!(received(&"é".repeat(REASON)), "é".repeat(REASON / 2 - 2) + "...");
    assert_eq!(received("\x1b[2Jred\r\n\u{9b}1m"), "\\u{1b}[2Jred\\r\n\\u{9b}1m");
}

#[test]
fn random_texts_are_parsed_or_refused() {
    let mut random = Random(11);
    for _ in inputs(20_000) {
        let messages = messages();
        let mut bytes = messages[random.below(messages.len())].to_string().into_bytes();
        random.change(&mut bytes);
        match Message::parse(&String::from_utf8_lossy(&bytes)) {
            Some(Message::Failed(_, reason) | Message::Refused { reason, .. }) => {
                assert!(!reason.contains(|c: char| c.is_control() && c != '\n'), "{reason:?}");
            }
            Some(Message::Missing(ranks, count)) => assert!(ranks.len() <= NAMED.min(count as usize)),
            Some(message) => assert_eq!(Message::parse(&message.to_string()), Some(message)),
            None => {}
        }
    }
}
