#[test]
fn state_and_parent_are_found_behind_any_name() {
    let parse = |stat| super::parse_stat(stat).map(|(state, parent)| (state, parent.as_raw_nonzero().get()));
    assert_eq!(parse("71 (a) S 3) T 42 71 71 0"), Some(("T".into(), 42)));
    assert_eq!(parse("71 (init) S 0 1 1"), None);
    assert_eq!(parse("71 init"), None);
}
