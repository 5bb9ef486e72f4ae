use serde_json::{Value, json};

use super::{Link, Pairs};

#[test]
fn rank_without_a_measured_link_has_no_median_and_is_not_slow() {
    let link = |latency_us| Some(Link { latency_us, bandwidth: 1.0, ..Link::default() });
    let mut pairs = Pairs { links: vec![vec![None; 4]; 4], ..Pairs::default() };
    (pairs.links[0][1], pairs.links[1][0]) = (link(1.0), link(3.0));
    pairs.judge();
    let ranks: Value = serde_json::to_value(&pairs).unwrap()["ranks"].take();
    for (rank, latency_us, bandwidth) in
        [(0, json!(3.0), json!(1.0)), (1, json!(3.0), json!(1.0)), (2, json!(null), json!(null))]
    {
        let judged = json!({
            "rank": rank, "latency_us": latency_us, "bandwidth": bandwidth, "wrong": 0, "is_slow": false,
        });
        assert_eq!(ranks[rank], judged);
    }
    assert!(!pairs.to_string().contains("is slow"), "{pairs}");
}
