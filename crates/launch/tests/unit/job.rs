use super::nonce;

#[test]
fn nonces_differ() {
    let nonces: std::collections::HashSet<_> = (0..1000).map(|_| nonce()).collect();
    assert_eq!(nonces.len(), 1000);
}
