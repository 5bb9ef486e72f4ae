use std::path::Path;

use super::{is_recording, variable};

#[test]
fn variable_is_found_by_its_whole_name() {
    let environment = b"XA=1\0A=2=3\0B\0";
    assert_eq!(variable(environment, "A").unwrap(), "2=3");
    assert_eq!(variable(environment, "B"), None);
}

#[test]
fn recordings_have_the_prefix_and_a_number() {
    let is_recording = |name| is_recording(Path::new(name), "rank".as_ref());
    assert!(is_recording("/tmp/rank12.json"));
    for other in ["/tmp/rank.json", "/tmp/rank1.json.new", "/tmp/ranks1.json", "/tmp/1.json", "/"] {
        assert!(!is_recording(other), "{other}");
    }
}
