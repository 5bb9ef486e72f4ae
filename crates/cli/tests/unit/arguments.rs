use clap::{Args, Command, FromArgMatches};

use super::{Average, MeasureArguments};

impl MeasureArguments {
    pub(crate) fn parse(words: &str) -> Self {
        let command = Command::new("bench").no_binary_name(true).allow_negative_numbers(true);
        let matches = Self::augment_args(command).get_matches_from(words.split_whitespace());
        Self::from_arg_matches(&matches).unwrap()
    }
}

#[test]
fn average_is_that_of_nccl_tests() {
    let times = [3.0, 1.0, 8.0];
    let all = [Average::RankZero, Average::Mean, Average::Minimum, Average::Maximum];
    assert_eq!(all.map(|average| average.of(&times)), [3.0, 4.0, 1.0, 8.0]);
}
