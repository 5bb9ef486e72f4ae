use super::*;

fn collective(function: &str, data_type: u8, reduction: u8, root: u32, count: u64) -> CallHeader {
    let function = Function::named(function);
    CallHeader::Collective { function, data_type, reduction, root, count, is_grouped: false }
}

#[test]
fn difference_names_functions_only_if_they_differ() {
    const NONE: u8 = CallHeader::NO_REDUCTION;
    let control = |call, length| CallHeader::Control { call, length };
    let (sum, scatter) = (collective("all_reduce", 7, 0, 0, 10), collective("scatter", 7, NONE, 0, 1));
    for (one, other, text) in [
        (
            sum,
            collective("all_reduce", 8, 0, 0, 5),
            "the ranks called ncclAllReduce with different counts and data types",
        ),
        (
            sum,
            collective("all_reduce", 7, 2, 0, 10),
            "the ranks called ncclAllReduce with different reductions",
        ),
        (sum, scatter, "the ranks called different functions"),
        (sum, control(ControlCall::Split, 8), "the ranks called different functions"),
        (
            control(ControlCall::Split, 8),
            control(ControlCall::Split, 9),
            "the ranks called ncclCommSplit with different arguments",
        ),
        (scatter, collective("scatter", 7, NONE, 3, 1), "the ranks called ncclScatter with different roots"),
    ] {
        assert_eq!([one.describe_difference(other), other.describe_difference(one)], [text; 2]);
    }
}
