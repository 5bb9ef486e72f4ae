use super::{Name, hash, nonce};

#[test]
fn hash_is_fnv_1a() {
    assert_eq!(hash(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    assert_eq!(hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
}

#[test]
fn nonces_differ() {
    let nonces: std::collections::HashSet<_> = (0..1000).map(|_| nonce()).collect();
    assert_eq!(nonces.len(), 1000);
}

#[test]
fn names_that_differ_at_their_ends_do_not_fit() {
    let [one, other] = ["a", "b"].map(|end| Name::new(&("x".repeat(2 * Name::MAX) + end)));
    assert!(!one.fits(&other) && one.fits(&one) && one.text().len() < Name::MAX);
    let none = Name::new("");
    assert!(!none.fits(&one) && none.fits(&none));
    assert!(Name::ANY.fits(&one) && none.fits(&Name::ANY));
    assert_eq!(
        [none, Name::new("data")].map(|name| name.to_string()),
        ["a communicator without a name", "communicator \"data\""]
    );
}
