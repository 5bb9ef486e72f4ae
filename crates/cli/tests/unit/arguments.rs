use super::Average;

#[test]
fn average_is_that_of_nccl_tests() {
    let times = [3.0, 1.0, 8.0];
    let all = [Average::RankZero, Average::Mean, Average::Minimum, Average::Maximum];
    assert_eq!(all.map(|average| average.of(&times)), [3.0, 4.0, 1.0, 8.0]);
}
