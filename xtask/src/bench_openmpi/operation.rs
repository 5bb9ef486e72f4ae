use std::fmt::{self, Display, Formatter};

use clap::ValueEnum;

/// An operation that both libraries have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    AllToAll,
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_names_on_the_command_line_are_the_printed_ones() {
        for operation in Operation::value_variants() {
            let value = operation.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), operation.to_string());
        }
    }
}
