use super::differs;

#[test]
fn parameters_are_compared_by_their_words() {
    for (value, read) in [("info", "INFO"), ("ENV,INIT", "INIT,ENV"), ("1", "TRUE"), ("^COLL", "INIT")] {
        assert!(!differs(value, read), "{value}");
    }
    for (value, read) in [("INITT", "INIT,ENV"), ("2", "FALSE"), ("yes", "FALSE")] {
        assert!(differs(value, read), "{value}");
    }
}
