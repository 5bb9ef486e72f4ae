#[test]
fn bits_are_those_of_the_mask() {
    // SIGUSR1 is 10, and SIGUSR2 12.
    let status = "Name:\tx\nSigIgn:\tffffffffffffffff\nSigCgt:\t0000000000000200\n";
    let has_bit = |status, signal: i32| super::has_bit(status, "SigCgt:", signal - 1);
    assert!(has_bit(status, 10) && !has_bit(status, 12) && !has_bit("Name:\tx\n", 10));
}

#[test]
fn state_and_parent_are_found_behind_any_name() {
    let parse = |stat| super::parse_stat(stat).map(|(state, parent)| (state, parent.as_raw_nonzero().get()));
    assert_eq!(parse("71 (a) S 3) T 42 71 71 0"), Some(("T".into(), 42)));
    assert_eq!(parse("71 (init) S 0 1 1"), None);
    assert_eq!(parse("71 init"), None);
}
